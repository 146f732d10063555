"""The helper process: reads what it is told, looks at memory and at others, and reports, until nobody listens.

Line by line on stdin: the order, then the engine's bar (`{"done": 3, "total": 12}`). On stdout: reports.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from vllm_supervisor.core.readahead.course import Course, behind
from vllm_supervisor.core.readahead.memory import Memory, pressed, room, shortage
from vllm_supervisor.core.readahead.order import Order, from_line, unwanted
from vllm_supervisor.core.readahead.report import Doing, Report, to_line

from . import cache
from .files import File, NothingToReadError, file_system, mapped, weight_files
from .look import look
from .mark import earlier_loads
from .reading import IDLE, LAST, Reader, io_priority

LOOK_EVERY = 0.25
REPORT_EVERY = 0.5
RATE_OVER = 3.0
OOM_SCORE = 800
"""The kernel is to end this process before the engine, and that one before the supervisor."""
NICE = 5
PR_SET_PDEATHSIG = 1


class Helper:
    """One reading."""

    def __init__(self, order: Order, files: list[File]) -> None:
        self._order, self._files = order, files
        self._total = sum(file.size for file in files)
        self._began = time.monotonic()
        self._short = False
        self._why = ""
        self._met = self._hit = self._dropped = 0
        self._at = -1
        self._points: collections.deque[tuple[float, int]] = collections.deque()
        self._told: tuple[Doing, float] = (Doing.OFF, float("-inf"))
        self._reader = Reader(files, Course(tuple(file.size for file in files), 0), order.threads)
        self._decide(look())

    def run(self) -> None:
        """Read and report until stdin ends."""
        io_priority(IDLE, [0])  # the threads inherit it
        self._reader.start()
        rest = b""
        while True:
            ready, _, _ = select.select([0], [], [], LOOK_EVERY)
            if ready:
                piece = os.read(0, 1 << 16)
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._bar(line)
            if not self._reader.course.finished or not self._reader.course.whole:
                self._decide(look())
                self._give_back()
            self._report()
        self._reader.close()
        self._report(last=True)

    def _bar(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            bar = json.loads(line)
            self._reader.engine_at(float(bar["done"]), float(bar["total"]))
            loaded = self._reader.course.loaded
            if self._at < 0:
                # From here on the engine waits for pages that we may be reading: with the idle class
                # it would wait behind everybody.
                io_priority(LAST, self._reader.native_ids)
            for shard in range(self._at + 1, min(loaded + 1, len(self._files))):
                self._meet(shard, now=shard == loaded)
            self._at = max(loaded, self._at)

    def _meet(self, shard: int, *, now: bool) -> None:
        """The engine has come to a shard; what was not seen in that moment is told by what was read."""
        file = self._files[shard]
        share: float | None = None
        if now:
            with contextlib.suppress(OSError):
                share = cache.cached_share(file.path, file.size)
        if share is None:
            share = min(self._reader.fetched[shard] / file.size, 1.0) if file.size else 1.0
        self._met += file.size
        self._hit += int(file.size * share)

    def _decide(self, seen: Memory | None) -> None:
        order, reader = self._order, self._reader
        if seen is None:
            self._why, may = "the kernel does not say how much memory there is", 0
        else:
            may = room(seen, order, self._total, reader.course.loaded / len(self._files))
            self._short = pressed(seen, before=self._short)
            self._why = "memory is short" if self._short else ""
        others = earlier_loads(Path(order.runtime_dir)) if order.runtime_dir and not self._why else []
        if others:
            self._why = f"{', '.join(others)} loads weights"
        reader.allow(not self._why, may)

    def _give_back(self) -> None:
        course = self._reader.course
        if course.whole or course.loaded - 1 <= course.dropped:
            return
        shards = behind(course, mapped(self._files))
        for shard in shards:
            with contextlib.suppress(OSError):
                cache.give_back(self._files[shard].path)
                self._dropped += self._files[shard].size
        self._reader.given_back(shards)

    def _doing(self) -> tuple[Doing, str]:
        reader = self._reader
        if reader.failure:
            return Doing.FAILED, reader.failure
        resting = reader.resting
        if resting and reader.course.finished:
            return Doing.DONE, ""
        if self._why:
            return Doing.PAUSED, self._why
        return (Doing.FULL if resting else Doing.READING), ""

    def _report(self, *, last: bool = False) -> None:
        now = time.monotonic()
        doing, why = self._doing()
        was, at = self._told
        if not last and doing is was and now - at < REPORT_EVERY:
            return
        self._told = (doing, now)
        reader = self._reader
        disk, cached = reader.counted()
        self._points.append((now, disk))
        while len(self._points) > 2 and now - self._points[1][0] > RATE_OVER:
            self._points.popleft()
        (then, before), rate = self._points[0], None
        if doing is Doing.READING and now > then:
            rate = (disk - before) / (now - then)
        course = reader.course
        say(
            Report(
                doing=doing,
                why=why,
                window=not course.whole,
                shards=len(self._files),
                total_bytes=self._total,
                read_bytes=disk,
                cached_bytes=cached,
                dropped_bytes=self._dropped,
                ahead_bytes=course.ahead,
                reading_seconds=round(reader.seconds(), 3),
                rate=rate,
                hit_bytes=self._hit,
                met_bytes=self._met,
                seconds=round(now - self._began, 3),
            )
        )


def say(report: Report) -> None:
    """One line; it is waited for if the reader is slow."""
    line = to_line(report)
    while line:
        line = line[os.write(1, line) :]


def off(order: Order) -> tuple[Report | None, list[File]]:
    """The only report of a reading that does not take place; else the files."""
    try:
        files = weight_files(order)
    except NothingToReadError as problem:
        return Report(why=str(problem)), []
    total = sum(file.size for file in files)
    seen = look()
    # The engine's own rule (weight_utils.py): nine tenths of what is available.
    why = unwanted(order, file_system(files[0].path), fits=seen is None or total <= 0.9 * seen.available)
    if not why and seen is None:
        why = "the kernel does not say how much memory there is"
    elif not why and seen is not None:
        why = shortage(seen, order, room(seen, order, total, 0.0), total)
    return (Report(why=why, shards=len(files), total_bytes=total) if why else None), files


def main(parent: int) -> int:
    """Argument: the parent's pid."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be noticed
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        with open(0, "rb", buffering=0, closefd=False) as told:
            line = told.readline()
        order = from_line(line)
        why, files = off(order)
        if why is not None:
            say(why)
        else:
            Helper(order, files).run()
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1])))  # a thread that is stuck in a read must not hold us
