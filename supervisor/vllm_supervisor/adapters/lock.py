"""One supervisor an instance: a lock on a file in the runtime directory, gone with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class InstanceLock:
    """The lock of one instance; kept over a re-execution, because its descriptor is.

    Attributes:
        descriptor: The open file.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def release(self) -> None:
        """Give the lock up."""
        os.close(self.descriptor)


def acquire(path: Path) -> InstanceLock | int:
    """The lock, or the pid of the supervisor that holds it (0 when it does not say).

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        return int(text) if text.isdigit() else 0
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return InstanceLock(descriptor)
