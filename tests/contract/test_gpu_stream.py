"""The daemon's end of the GPU helper, with the real helper on fake cards and with helpers that misbehave."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from fake.gpus import FakeGpus
from vllm_supervisor.adapters import gpu_stream
from vllm_supervisor.adapters.gpu_stream import GpuStream

DEADLINE = 20.0


class Watched:
    """A stream in a task, and its tables as they come."""

    def __init__(self, **settings):
        self.tables = asyncio.Queue()
        self.history = []
        self.stream = GpuStream(self.tables.put_nowait, **{"period": 0.05, "pauses": (0.05, 0.2), **settings})

    async def until(self, predicate, what):
        try:
            async with asyncio.timeout(DEADLINE):
                while True:
                    table = await self.tables.get()
                    self.history.append(table)
                    if predicate(table):
                        return table
        except TimeoutError:
            pytest.fail(f"not within {DEADLINE} s: {what}; the last tables: {self.history[-3:]}")

    async def __aenter__(self):
        self.task = asyncio.create_task(self.stream.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


def script(text):
    return [sys.executable, "-c", "import os, sys, time, signal\n" + text]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def gpus(tmp_path):
    return FakeGpus(tmp_path)


def up(table):
    return {record.index: record.up for record in table.records}


async def test_all_cards_are_read(gpus):
    gpus.card(3, processes=[[os.getpid(), 5 << 30]], power=320.5, temperature=61, throttle=0x40)
    async with Watched(environment=gpus.environment) as watched:
        table = await watched.until(lambda t: len(t.samples) == 8, "eight samples")
    assert table.ok
    assert [sample.index for sample in table.samples] == list(range(8))
    card = table.samples[3]
    assert card.processes == ((os.getpid(), 5 << 30),)
    assert (card.power_watts, card.temperature_celsius, card.uuid) == (320.5, 61, "GPU-00000003")
    assert card.throttled["hw-thermal"]
    assert not card.throttled["sw-thermal"]
    assert card.clocks_hertz == {"sm": 180e6, "memory": 405e6}
    assert (card.pcie_link_generation, card.pcie_link_generation_max, card.pcie_link_width) == (1, 5, 16)


async def test_the_helper_is_gone_when_the_daemon_leaves(gpus):
    async with Watched(environment=gpus.environment) as watched:
        await watched.until(lambda t: t.ok, "a report")
        pid = watched.stream.pid
        assert alive(pid)
    assert not alive(pid)
    assert watched.stream.pid is None


async def test_a_lost_card_goes_alone_and_may_come_back(gpus):
    async with Watched(environment=gpus.environment) as watched:
        await watched.until(lambda t: len(t.samples) == 8, "eight samples")
        gpus.card(2, lost=True)
        table = await watched.until(lambda t: t.lost, "a lost card")
        assert [(gone.index, gone.uuid, gone.reason) for gone in table.lost] == [(2, "GPU-00000002", "lost")]
        assert len(table.samples) == 7
        assert up(table) == {index: index != 2 for index in range(8)}
        gpus.card(2, lost=False)
        await watched.until(lambda t: len(t.samples) == 8 and not t.lost, "eight samples again")
        assert watched.stream.starts == 1


async def test_a_call_that_hangs_costs_that_card_only_and_never_the_loop(gpus):
    async with Watched(environment=gpus.environment) as watched:
        await watched.until(lambda t: len(t.samples) == 8, "eight samples")
        gpus.card(5, hang=["nvmlDeviceGetPowerUsage"])
        longest, before = 0.0, time.monotonic()
        while True:
            table = await watched.until(lambda _: True, "another table")
            longest = max(longest, time.monotonic() - before)
            before = time.monotonic()
            if table.lost:
                break
        assert [(gone.index, gone.reason) for gone in table.lost] == [(5, "stuck")]
        assert len(table.samples) == 7
        assert longest < 3.0
        gpus.card(5, hang=[])
        await watched.until(lambda t: len(t.samples) == 8, "the card again")
        assert watched.stream.starts == 1


async def test_a_helper_that_is_stuck_as_a_whole_is_replaced(gpus):
    gpus.write(hang=["nvmlInit"])
    async with Watched(environment=gpus.environment, first_after=0.5) as watched:
        await watched.until(lambda t: "silent for 0.5 s" in t.error, "silence noticed")
        gpus.write(hang=[])
        await watched.until(lambda t: t.ok, "a report of the next helper")
        assert watched.stream.starts >= 2


async def test_a_helper_that_stops_is_killed_and_its_readings_do_not_outlive_it(gpus):
    async with Watched(environment=gpus.environment, silent_after=1.0) as watched:
        await watched.until(lambda t: t.ok, "a report")
        pid = watched.stream.pid
        os.kill(pid, signal.SIGSTOP)
        table = await watched.until(lambda t: not t.ok, "silence noticed")
        assert "silent" in table.error
        assert table.samples == ()
        assert not any(up(table).values())
        assert not alive(pid)
        await watched.until(lambda t: t.ok, "a report of the next helper")


async def test_current_forgets_readings_by_itself_when_nobody_reports(gpus, monkeypatch):
    async with Watched(environment=gpus.environment, silent_after=1.0) as watched:
        await watched.until(lambda t: t.ok, "a report")
        assert watched.stream.current().samples
        later = time.monotonic() + 2.0
        monkeypatch.setattr(gpu_stream.time, "monotonic", lambda: later)
        assert watched.stream.current().samples == ()
        assert not watched.stream.current().ok
        monkeypatch.undo()


async def test_counts_outlive_the_helper(gpus):
    async with Watched(environment=gpus.environment) as watched:
        await watched.until(lambda t: t.ok, "a report")
        gpus.write(xid=[[1, 4, 79], [2, 4, 79], [3, 0, 94]])
        await watched.until(lambda t: t.records and t.records[0].xid_errors, "the events")
        gpus.write(xid=[])
        os.kill(watched.stream.pid, signal.SIGKILL)
        await watched.until(lambda t: not t.ok, "the helper's end")
        table = await watched.until(lambda t: t.ok, "the next helper")
        assert table.records[4].xid_errors == {79: 2}
        assert table.records[0].xid_errors == {94: 1}
        assert table.records[4].samples["ok"] > 1


async def test_a_reloaded_driver_is_found_again(gpus):
    async with Watched(environment=gpus.environment) as watched:
        await watched.until(lambda t: t.ok, "a report")
        gpus.write(driver=2)
        table = await watched.until(lambda t: not t.ok, "the loss of the driver")
        assert table.samples == ()
        await watched.until(lambda t: t.ok and len(t.samples) == 8, "all cards again")
        assert watched.stream.starts == 2


async def test_without_a_driver_the_reason_is_said_and_tried_again(gpus):
    gpus.write(errors={"nvmlInit": 9})
    async with Watched(environment=gpus.environment) as watched:
        table = await watched.until(lambda t: t.error, "a reason")
        assert (table.ok, table.error, table.records) == (False, "NVML: Driver Not Loaded", ())
        gpus.write(errors={})
        await watched.until(lambda t: t.ok, "a report once the driver is there")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["/nonexistent/helper"], "does not start"),
        (script("sys.exit(7)"), "ended with 7"),
        (script("os.kill(os.getpid(), signal.SIGSEGV)"), "ended with -11"),
        (script("print('Traceback', flush=True); time.sleep(60)"), "talks nonsense"),
        (script("print('{}', flush=True); time.sleep(60)"), "talks nonsense"),
        (script("os.write(1, b'x' * (2 << 20)); time.sleep(60)"), "talks nonsense"),
        (script("os.write(1, b'{\"at\": 1')"), "ended with 0"),
        (script("os.close(1); time.sleep(60)"), "ended with -9"),
    ],
    ids=["missing", "exits", "crashes", "prose", "wrong", "endless line", "half a line", "closed"],
)
async def test_any_other_end_is_one_sentence_and_another_try(command, error):
    async with Watched(command=command) as watched:
        await watched.until(lambda t: error in t.error, error)
        await watched.until(lambda t: error in t.error, "the next try")


async def test_pauses_between_helpers_double_up_to_the_longest():
    async with Watched(command=script("sys.exit(1)"), pauses=(0.1, 0.4)) as watched:
        for _ in range(5):
            await watched.until(lambda t: "ended" in t.error, "an end")
    ends = [table.at for table in watched.history]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert all(gap >= least for gap, least in zip(gaps, (0.1, 0.2, 0.4, 0.4), strict=True))


class Unkillable(subprocess.Popen):
    """Stands for a process that a driver call holds in the kernel."""

    def kill(self):
        pass


async def test_a_helper_that_cannot_be_killed_is_named_and_waited_for_but_not_by_an_exit():
    tables = []
    stream = GpuStream(tables.append)
    process = Unkillable([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        begin = time.monotonic()
        await stream._end(process, leaving=True)
        assert time.monotonic() - begin < 2 * gpu_stream.PARTING
        assert tables == []
        waiting = asyncio.create_task(stream._end(process, leaving=False))
        async with asyncio.timeout(DEADLINE):
            while not tables:
                await asyncio.wait([waiting], timeout=0.01)
        assert tables[0].error == f"the GPU helper (pid {process.pid}) is stuck in the driver and cannot be killed"
        assert not waiting.done()
        process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            await waiting
        assert process.returncode == -signal.SIGKILL
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
