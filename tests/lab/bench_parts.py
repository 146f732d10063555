"""What the benchmarks compare with: the first answer that was possible, a shell loop, a plain reader of a pipe."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from vllm_supervisor.adapters.output import OutputReader, make_pipe
from vllm_supervisor.core.lines import Splitter
from vllm_supervisor.core.scanner import Scanner

LINES = 400_000
LINE = "(APIServer pid=42) INFO 11-30 20:08:41 [loggers.py:335] some ordinary line of an engine's log, number {}\n"
WRITER = """
import os, sys, time
lines = int(sys.argv[1])
line = {line!r}
longest = 0.0
for start in range(0, lines, 500):
    data = "".join(line.format(n) for n in range(start, start + 500)).encode()
    began = time.monotonic()
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
    longest = max(longest, time.monotonic() - began)
sys.stderr.write(str(longest))
"""


class Row(NamedTuple):
    """One row of the table."""

    what: str
    measured: str
    beside: str
    target: str


class Moment:
    """A moment that a thread waits for."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.stop = threading.Event()
        self._seen = threading.Event()

    def now(self) -> None:
        self.at = time.monotonic()
        self._seen.set()

    def wait(self, limit: float) -> float:
        """When it came, in monotonic seconds; an AssertionError when it does not come in time."""
        assert self._seen.wait(limit), f"nothing came within {limit:g} s"
        assert self.at is not None
        return self.at


@contextlib.contextmanager
def _in_thread(moment: Moment, target) -> Iterator[Moment]:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        yield moment
    finally:
        moment.stop.set()
        thread.join(30)


@contextlib.contextmanager
def first_answer(port: int, model: str) -> Iterator[Moment]:
    """When the engine first answered a request for one token, asked again and again without a pause."""
    moment = Moment()
    body = json.dumps({"model": model, "prompt": "Hi", "max_tokens": 1})

    def ask() -> None:
        while not moment.stop.is_set() and moment.at is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                if connection.getresponse().status == 200:
                    moment.now()
            except (OSError, http.client.HTTPException):
                time.sleep(0.005)
            finally:
                connection.close()

    with _in_thread(moment, ask) as started:
        yield started


@contextlib.contextmanager
def shell_loop(port: int) -> Iterator[Moment]:
    """When the loop that people write would have gone on: `until curl -sf …/health; do sleep 1; done`."""
    moment = Moment()
    script = f"until curl -sf -o /dev/null http://127.0.0.1:{port}/health; do sleep 1; done"

    def loop() -> None:
        child = subprocess.Popen(["sh", "-c", script], start_new_session=True)
        while child.poll() is None and not moment.stop.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()
        else:
            moment.now()

    with _in_thread(moment, loop) as started:
        yield started


def output_rows() -> list[Row]:
    """Lines a second through reader, splitter and classifier, and how long the writer was held up."""
    speed, held = _through(classify=True)
    plain, plain_held = _through(classify=False)
    return [
        Row(
            f"engine output, {LINES} ordinary lines, classified",
            f"{speed:,.0f} lines/s",
            f"read and thrown away: {plain:,.0f} lines/s",
            ">= 100,000 lines/s",
        ),
        Row(
            "longest time that a write of 500 lines took the engine",
            f"{held * 1000:.0f} ms",
            f"{plain_held * 1000:.0f} ms",
            "<= 100 ms",
        ),
    ]


def _through(*, classify: bool) -> tuple[float, float]:
    read_end, write_end = make_pipe()
    scanner, splitter, ended = Scanner(), Splitter(), threading.Event()
    seen = [0]

    def handle(stream: str, piece: bytes) -> None:
        if not classify:
            seen[0] += piece.count(b"\n")
            return
        for line in splitter.feed(piece) if piece else splitter.flush():
            seen[0] += 1
            scanner.feed(line, stream)

    reader = OutputReader({"stdout": read_end}, handle, ended.set)
    began = time.monotonic()
    command = [sys.executable, "-c", WRITER.format(line=LINE), str(LINES)]
    writer = subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    reader.start()
    assert ended.wait(120)
    took = time.monotonic() - began
    _, longest = writer.communicate(timeout=30)
    assert seen[0] == LINES
    return LINES / took, float(longest)
