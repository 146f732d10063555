"""What of a file lies in the page cache, and giving it back.

Asked with preadv2(2) and RWF_NOWAIT, which needs no right but that to read: mincore(2) tells a reader
who neither owns nor may write a file that all of it is there.
"""

from __future__ import annotations

import errno
import os

PAGE = os.sysconf("SC_PAGE_SIZE")
POINTS = 32
"""Pages that are asked for in a file, evenly spread; each is 1/32 of the answer."""


def is_cached(descriptor: int, offset: int, size: int) -> bool | None:
    """Whether a piece of a file is in memory, from its first, middle and last page; None where it cannot be told.

    A miss makes the kernel fetch the page asked for, so that nobody should ask twice for the same one.
    """
    for place in (offset, offset + size // 2, offset + size - 1):
        answer = _has(descriptor, place)
        if not answer:
            return answer
    return True


def cached_share(path: str, size: int) -> float | None:
    """Share of a file that is in memory, 0 to 1, from a sample; None where it cannot be told.

    Raises:
        OSError: the file cannot be opened.
    """
    if not size:
        return 1.0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        step = size / POINTS
        # Between the pages that the reading itself asks for, which a miss would have fetched.
        answers = [_has(descriptor, min(int((number + 0.37) * step), size - 1)) for number in range(POINTS)]
    finally:
        os.close(descriptor)
    return None if None in answers else sum(map(bool, answers)) / POINTS


def give_back(path: str) -> None:
    """Drop a file's clean pages that nobody has mapped from the page cache.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _has(descriptor: int, offset: int) -> bool | None:
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError as problem:
        if problem.errno == errno.EAGAIN:
            return False
        if problem.errno in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM}:
            return None
        raise
