"""Reading the engine's pipes without ever holding the engine up, and writing to a stderr that may block."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from vllm_supervisor.adapters.output import QUEUE_BYTES, Forwarder, OutputReader, make_pipe
from vllm_supervisor.core.events import EngineExited, Output
from vllm_supervisor.core.facts import PhaseSeen, StartupComplete
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.daemon.engine_run import EngineRun

FLOOD = """
import json, os, sys, time
block = b"".join(b"(EngineCore pid=1) INFO 11-30 20:08:32 [core.py:1] flood line number %6d\\n" % n for n in range(500))
slowest = 0.0
os.write(1, b"(EngineCore pid=1) INFO 11-30 20:08:32 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x\\n")
for _ in range(int(sys.argv[1]) // 500):
    began = time.monotonic()
    os.write(1, block)
    slowest = max(slowest, time.monotonic() - began)
os.write(2, b"INFO:     Application startup complete.\\n")
json.dump(slowest, open(sys.argv[2], "w"))
"""


class Heard:
    """What a reader handed over."""

    def __init__(self):
        self.data = {"stdout": b"", "stderr": b""}
        self.ended = []
        self.done = threading.Event()

    def handle(self, stream, piece):
        if piece:
            self.data[stream] += piece
        else:
            self.ended.append(stream)

    def reader(self, **pipes):
        made = OutputReader(pipes, self.handle, self.done.set)
        made.start()
        return made


def test_both_streams_arrive_whole_and_end_once():
    heard = Heard()
    out, err = make_pipe(), make_pipe()
    heard.reader(stdout=out[0], stderr=err[0])
    os.write(out[1], b"torn li")
    os.write(err[1], b"\xff\x00 bytes")
    os.write(out[1], b"ne\nlast words")
    for end in (out[1], err[1]):
        os.close(end)
    assert heard.done.wait(5)
    assert heard.data == {"stdout": b"torn line\nlast words", "stderr": b"\xff\x00 bytes"}
    assert sorted(heard.ended) == ["stderr", "stdout"]


def test_writers_that_live_on_do_not_hold_the_end_up():
    heard = Heard()
    out = make_pipe()
    reader = heard.reader(stdout=out[0])
    os.write(out[1], b"before")
    began = time.monotonic()
    reader.finish(0.2)
    assert heard.done.wait(5)
    assert time.monotonic() - began < 2.0
    assert heard.data["stdout"] == b"before"
    with pytest.raises(BrokenPipeError):
        os.write(out[1], b"an orphan writes on")
    os.close(out[1])


def test_an_orphan_that_floods_does_not_hold_the_end_up():
    heard = Heard()
    out = make_pipe()
    reader = heard.reader(stdout=out[0])
    flood = subprocess.Popen(["yes", "a line of an orphan"], stdout=out[1])
    os.close(out[1])
    try:
        reader.finish(0.3)
        assert heard.done.wait(5)
    finally:
        flood.kill()
        flood.wait(10)


def test_a_reader_that_is_detached_leaves_the_pipes_to_another():
    heard, later = Heard(), Heard()
    out = make_pipe()
    reader = heard.reader(stdout=out[0])
    assert reader.detach()
    os.write(out[1], b"after the re-execution")
    os.close(out[1])
    later.reader(stdout=out[0])
    assert later.done.wait(5)
    assert later.data["stdout"] == b"after the re-execution"
    assert heard.ended == []


def test_a_stderr_that_blocks_costs_the_callers_nothing_and_drops_are_counted():
    read, write = os.pipe()
    forwarder = Forwarder(write)
    line = b"x" * 999 + b"\n"
    began = time.monotonic()
    for _ in range(40_000):
        forwarder.put(line)
    assert time.monotonic() - began < 2.0
    assert forwarder.dropped >= 40_000 - QUEUE_BYTES // 1000 - 200
    began = time.monotonic()
    forwarder.close(0.2)
    assert time.monotonic() - began < 1.0
    # A reader comes back: what waited arrives in whole lines.
    kept = 40_000 - forwarder.dropped
    got = b""
    while len(got) < kept * 1000:
        got += os.read(read, 1 << 20)
    assert got == line * kept
    os.close(read)


def test_a_stderr_that_is_gone_counts_what_it_loses():
    read, write = os.pipe()
    os.close(read)
    forwarder = Forwarder(write)
    forwarder.put(b"one\ntwo\n", 2)
    forwarder.close(5)
    assert forwarder.dropped == 2
    os.close(write)


def test_a_stderr_that_does_not_block_is_waited_for_outside_of_the_callers():
    read, write = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(read, True)
    forwarder = Forwarder(write)
    forwarder.put(b"y" * 300_000 + b"\n")
    got = b""
    while not got.endswith(b"\n"):
        got += os.read(read, 1 << 16)
    assert len(got) == 300_001
    forwarder.close(5)
    os.close(read)
    os.close(write)


async def test_a_flood_is_classified_without_holding_the_engine_up(tmp_path):
    """The writer's longest single write, while every line is classified and the loop turns."""
    loop = asyncio.get_running_loop()
    events = asyncio.Queue()
    with (tmp_path / "stderr").open("wb") as sink:
        forwarder = Forwarder(sink.fileno())
        run = EngineRun(loop, events.put_nowait, forwarder, journal=False)
        count, report = 200_000, tmp_path / "slowest"
        began = time.monotonic()
        run.start([sys.executable, "-c", FLOOD, str(count), str(report)], dict(os.environ))
        facts = []
        while True:
            event = await asyncio.wait_for(events.get(), 60)
            if isinstance(event, EngineExited):
                break
            assert isinstance(event, Output)
            facts += event.facts
        took = time.monotonic() - began
        forwarder.close(5)
    assert event.status == 0
    assert PhaseSeen(Phase.CONNECTING) in facts
    assert StartupComplete() in facts
    assert sum(run.lines.values()) == count + 2
    slowest = json.loads(report.read_text())
    assert slowest < 0.1, f"the engine was held up for {slowest * 1000:.0f} ms"
    assert count / took > 10_000, f"{count / took:.0f} lines a second on a busy machine"


async def test_the_last_words_of_an_engine_come_before_its_end(tmp_path):
    events = asyncio.Queue()
    with (tmp_path / "stderr").open("wb") as sink:
        forwarder = Forwarder(sink.fileno())
        run = EngineRun(asyncio.get_running_loop(), events.put_nowait, forwarder, journal=False)
        # The shell is gone at once; a child of it holds the pipes for good.
        run.start(["/bin/sh", "-c", "sleep 5 & printf 'INFO:     Application startup complete.'; exit 3"],
                  dict(os.environ))  # fmt: skip
        first = await asyncio.wait_for(events.get(), 10)
        second = await asyncio.wait_for(events.get(), 10)
        forwarder.close(5)
    assert first == Output((StartupComplete(),))
    assert second == EngineExited(3)
