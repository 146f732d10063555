"""How fast the engine's output is read and classified, and whether the engine is ever held up by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lab.bench_parts import Row
from vllm_supervisor.adapters.output import Forwarder, OutputReader, make_pipe
from vllm_supervisor.daemon.engine_run import EngineRun

LINES = 400_000
PACED_LINES = 100_000
LINE = "(APIServer pid=42) INFO 11-30 20:08:41 [loggers.py:335] some ordinary line of an engine's log, number {}\n"
BLOCK = 500
WRITER = """
import os, sys, time
data, pause = open(sys.argv[1], "rb").read(), float(sys.argv[3])
size, longest, at = len(data) // int(sys.argv[2]), 0.0, 0
due = time.monotonic()
while at < len(data):
    view = memoryview(data)[at : at + size]
    at += size
    began = time.monotonic()
    while view:
        view = view[os.write(1, view):]
    longest = max(longest, time.monotonic() - began)
    due += pause
    if pause and due > time.monotonic():
        time.sleep(due - time.monotonic())
sys.stderr.write(str(longest))
"""


def output_rows() -> list[Row]:
    """Lines a second through all that a line passes: reader, splitter, redaction, classifier, incident's tail, journal.

    The rate is taken with a writer that is always ahead, so it stands still by design; whether an engine is held up is
    asked at 50,000 lines/s, far more than one prints.
    """
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        path = Path(name) / "lines"
        path.write_text("".join(LINE.format(number) for number in range(LINES)))
        speed, _ = through(path, LINES, classify=True)
        plain, _ = through(path, LINES, classify=False)
        path.write_text("".join(LINE.format(number) for number in range(PACED_LINES)))
        _, held = through(path, PACED_LINES, classify=True, pause_s=BLOCK / 50_000)
        _, plain_held = through(path, PACED_LINES, classify=False, pause_s=BLOCK / 50_000)
    return [
        Row(
            f"engine output, {LINES:,} lines, classified and passed on",
            f"{speed:,.0f} lines/s",
            f"read and thrown away: {plain:,.0f} lines/s",
            ">= 100,000 lines/s",
            speed,
            plain,
            100_000,
            more=True,
        ),
        Row(
            f"longest time that the engine was blocked in a write, 50,000 lines/s, {BLOCK} lines a write",
            f"{held * 1000:.0f} ms",
            f"read and thrown away: {plain_held * 1000:.0f} ms",
            "<= 100 ms",
            held * 1000,
            plain_held * 1000,
            100,
        ),
    ]


def through(path: Path, lines: int, *, classify: bool, pause_s: float = 0.0) -> tuple[float, float]:
    """The lines of a file through a pipe: lines a second, and the longest time of a write in seconds."""
    loop = asyncio.new_event_loop()
    read_end, write_end = make_pipe()
    ended, seen = threading.Event(), [0]
    sink = os.open(os.devnull, os.O_WRONLY)
    run = EngineRun(loop, lambda _: None, Forwarder(sink), journal=True)
    full = run._handle  # all that a line passes

    began: list[float] = []

    def handle(stream: str, piece: bytes) -> None:
        if not began:
            began.append(time.monotonic())  # the writer's own start is not the reader's time
        seen[0] += piece.count(b"\n")
        if classify:
            full(stream, piece)

    reader = OutputReader({"stdout": read_end}, handle, ended.set)
    command = [sys.executable, "-c", WRITER, str(path), str(lines // BLOCK), str(pause_s)]
    with subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE, text=True) as writer:
        os.close(write_end)
        reader.start()
        assert ended.wait(120)
        took = time.monotonic() - began[0]
        _, longest = writer.communicate(timeout=30)
    loop.close()
    os.close(sink)
    assert seen[0] == lines, (seen[0], lines)
    return lines / took, float(longest)
