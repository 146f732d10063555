"""Segments in /dev/shm that our engine made, so that none is left when it was killed (F3.5).

In the unit /dev/shm is the service's own and goes with it; in the foreground it is everybody's, so
only files that a process of our engine was seen to map are ever removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

SHM = "/dev/shm/"  # noqa: S108 - the kernel's place for POSIX shared memory
DELETED = " (deleted)"


def mapped(pids: Iterable[int], proc: Path = Path("/proc")) -> set[str]:
    """The files in /dev/shm that these processes map or hold open.

    The C library makes a semaphore under a temporary name, links it to its own name and removes the
    first: what is mapped is then called deleted, and only the inode leads to the file that stays.
    """
    found: set[str] = set()
    renamed: set[int] = set()
    try:
        here = Path(SHM).stat().st_dev
    except OSError:
        return found
    ours = f"{os.major(here):02x}:{os.minor(here):02x}"
    for pid in pids:
        with contextlib.suppress(OSError), (proc / str(pid) / "maps").open(errors="replace") as maps:
            for line in maps:
                at = line.find(SHM)
                if at < 0:
                    continue
                _, _, _, device, inode, path = line.rstrip("\n").split(maxsplit=5)
                if device != ours:
                    continue  # a service with a /dev/shm of its own: the names are the same, the files are not
                if path.endswith(DELETED):
                    renamed.add(int(inode))
                found.add(path.removesuffix(DELETED))
        directory = proc / str(pid) / "fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                with contextlib.suppress(OSError):
                    link = directory / name
                    target = str(link.readlink())
                    if target.startswith(SHM) and link.stat().st_dev == here:
                        found.add(target.removesuffix(DELETED))
    if renamed:
        with contextlib.suppress(OSError), os.scandir(SHM) as entries:
            found |= {entry.path for entry in entries if entry.inode() in renamed}
    return found


def remove(paths: Iterable[str], proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Remove those of `paths` that are ours and that no living process maps any more."""
    wanted = {path for path in paths if path.startswith(SHM)}
    if not wanted:
        return ()
    others = mapped((int(name) for name in os.listdir(proc) if name.isdigit()), proc)
    removed: list[str] = []
    for path in sorted(wanted - others):
        with contextlib.suppress(OSError):
            if Path(path).stat().st_uid == os.getuid():
                Path(path).unlink()
                removed.append(path)
    return tuple(removed)
