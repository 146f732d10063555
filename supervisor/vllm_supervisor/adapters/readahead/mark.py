"""Who loads weights now: an instance that does holds a lock on `loading` in its runtime directory.

The lock is the truth, and gone with its process; the text is when that load began. Of several
loads the earliest has the disk, so that no two wait for each other.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

NAME = "loading"


def hold(runtime_dir: Path, began: float) -> int:
    """Say that this instance loads; the descriptor to close when it does no more.

    Args:
        runtime_dir: The instance's own.
        began: When, in Unix seconds.

    Raises:
        OSError: the file cannot be made, or another process holds it.
    """
    descriptor = os.open(runtime_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{began:.3f}\n".encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def earlier_loads(runtime_dir: Path) -> list[str]:
    """The other instances that load now and began before us, by name; all of them while we do not load."""
    own = _began(runtime_dir / NAME)
    found = []
    try:
        others = sorted(path for path in runtime_dir.parent.iterdir() if path.name != runtime_dir.name)
    except OSError:
        return []
    for other in others:
        began = _began(other / NAME)
        if began is not None and (own is None or (began, other.name) < (own, runtime_dir.name)):
            found.append(other.name)
    return found


def _began(path: Path) -> float | None:
    """When the load began whose mark this is; None when nobody holds it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            return float(os.pread(descriptor, 64, 0))
        except ValueError:
            return 0.0
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None
