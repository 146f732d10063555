"""Keeping our own resident memory small: glibc's allocator, by ctypes.

The daemon has a few threads that allocate little; an arena for each of them holds megabytes that
nobody uses. Where the C library is another one nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_ARENA_MAX = -8


def one_arena() -> None:
    """All threads allocate from one arena; call before they begin (mallopt(3))."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return free memory to the system: what imports and the first configuration needed (malloc_trim(3))."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
