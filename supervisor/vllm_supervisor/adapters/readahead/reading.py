"""Reading: a few threads that take block after block and throw away what they read."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vllm_supervisor.core.readahead.course import Block, Course, engine_at, given_back, next_block

from .cache import is_cached
from .files import File

BLOCK = 16 << 20
"""Bytes that a thread takes at a time."""
PIECE = 2 << 20
"""Bytes of one read."""
TRIED = 8
"""Pieces after which a file system that kept none of them is known to keep none."""

IDLE, LAST = (3 << 13), (2 << 13) | 7
"""I/O priorities (ioprio_set(2)): only when nobody else reads, and behind everybody else's turn."""

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


def default_threads() -> int:
    """How many reads at once; more than the cores would only take turns copying."""
    return max(2, min(8, len(os.sched_getaffinity(0))))


def io_priority(priority: int, threads: Sequence[int]) -> bool:
    """Give threads (by their kernel's ids) an I/O priority; False where the kernel or the sandbox refuses."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    refused = [thread for thread in threads if libc.syscall(number, 1, thread, priority) != 0]
    return not refused


class Reader:
    """Reads a course.

    Attributes:
        course: Where it stands; changed under `changing`.
        allowed: Whether blocks are handed out.
        fetched: Bytes of each shard that were read, or found in memory.
        failure: Why it ended; empty while all is well.
    """

    def __init__(self, files: Sequence[File], course: Course, threads: int = 0) -> None:
        self._files = files
        self.changing = threading.Condition()
        self.course = course
        self.allowed = True
        self._from_disk = _disk_bytes()
        self._unknown = 0
        self.fetched = [0] * len(files)
        self.failure = ""
        self._kept = self._tried = 0
        self._closed = False
        self._holding = 0
        self._busy = 0
        self._busy_since = 0.0
        self._busy_seconds = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"reader-{number}", daemon=True)
            for number in range(threads or default_threads())
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End after the pieces that are being read; without waiting for them."""
        with self.changing:
            self._closed = True
            self.changing.notify_all()

    def join(self) -> None:
        """Wait until every thread has ended."""
        for thread in self._threads:
            thread.join()

    @property
    def native_ids(self) -> list[int]:
        """The kernel's ids of the threads."""
        return [thread.native_id for thread in self._threads if thread.native_id is not None]

    @property
    def resting(self) -> bool:
        """Whether no thread has a block and none can be had: the window is full, or all is read."""
        with self.changing:
            return not self._holding and next_block(self.course, BLOCK)[1] is None

    def counted(self) -> tuple[int, int]:
        """Bytes that came from the disk so far, and bytes that were in memory before.

        What a thread finds in memory may have come with another one's read, by the kernel's own
        reading ahead; what the disk really gave, only the kernel's account of this process says.
        """
        now = _disk_bytes()
        with self.changing:
            fetched = sum(self.fetched)
            disk = self._unknown if now is None or self._from_disk is None else now - self._from_disk
            disk = min(max(disk, self._unknown), fetched)
            return disk, fetched - disk

    def seconds(self) -> float:
        """Time in which at least one thread read from the disk."""
        with self.changing:
            return self._busy_seconds + (time.monotonic() - self._busy_since if self._busy else 0.0)

    def allow(self, allowed: bool, limit: int) -> None:
        """Go on or pause, with at most `limit` bytes ahead of the engine."""
        with self.changing:
            self.allowed = allowed
            self.course = replace(self.course, limit=limit)
            self.changing.notify_all()

    def engine_at(self, done: float, total: float) -> None:
        """The engine's bar."""
        with self.changing:
            self.course = engine_at(self.course, done, total)
            self.changing.notify_all()

    def given_back(self, shards: range) -> None:
        """These shards are out of memory again."""
        with self.changing:
            self.course = given_back(self.course, shards)

    def _take(self) -> Block | None:
        with self.changing:
            while not self._closed and not self.failure:
                if self.allowed:
                    self.course, block = next_block(self.course, BLOCK)
                    if block is not None:
                        self._holding += 1
                        return block
                self.changing.wait()
            return None

    def _run(self) -> None:
        buffer = mmap.mmap(-1, PIECE)
        descriptor, opened = -1, -1
        try:
            while (block := self._take()) is not None:
                if block.shard != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                    descriptor = os.open(self._files[block.shard].path, os.O_RDONLY | os.O_CLOEXEC)
                    opened = block.shard
                self._read(descriptor, block, buffer)
                with self.changing:
                    self._holding -= 1
        except OSError as problem:
            with self.changing:
                self.failure = self.failure or f"{self._files[opened].path}: {problem.strerror}"
                self.changing.notify_all()
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _read(self, descriptor: int, block: Block, buffer: mmap.mmap) -> None:
        view = memoryview(buffer)
        place, end = block.offset, block.offset + block.size
        while place < end and not self._closed:
            size = min(PIECE, end - place)
            there = is_cached(descriptor, place, size)
            if there:
                self._count(block.shard, size)
                place += size
                continue
            self._begin()
            try:
                got = os.preadv(descriptor, [view[:size]], place)
            finally:
                self._end()
            if not got:
                return  # the file became shorter; the engine will say so
            self._count(block.shard, got, unknown=there is None)
            if there is not None and self._tried < TRIED:
                self._check_kept(descriptor, place, got)
            place += got

    def _begin(self) -> None:
        with self.changing:
            if not self._busy:
                self._busy_since = time.monotonic()
            self._busy += 1

    def _end(self) -> None:
        with self.changing:
            self._busy -= 1
            if not self._busy:
                self._busy_seconds += time.monotonic() - self._busy_since

    def _count(self, shard: int, size: int, *, unknown: bool = False) -> None:
        with self.changing:
            self.fetched[shard] += size
            # Where nobody tells what lies in memory (ZFS keeps a cache of its own), all counts as read.
            self._unknown += size if unknown else 0

    def _check_kept(self, descriptor: int, place: int, size: int) -> None:
        kept = is_cached(descriptor, place, size)
        with self.changing:
            self._tried += 1
            self._kept += bool(kept)
            if self._tried >= TRIED and not self._kept:
                self.failure = "the file system keeps nothing of what is read in memory"
                self.changing.notify_all()


def _disk_bytes() -> int | None:
    """What the kernel fetched from disks for this process so far (proc(5), `read_bytes`)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/io").read_text().split("\nread_bytes:")[1].split()[0])
    return None
