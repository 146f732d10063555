"""The reading helper on real files: what it reads lies in memory afterwards, and it leaves when it is told."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from process.daemon_tools import at_most
from process.fakes import gone
from process.page_cache import MOST, mostly
from process.waiting import wait_until
from vllm_supervisor.adapters.processes import Processes
from vllm_supervisor.adapters.readahead import cache
from vllm_supervisor.adapters.readahead.client import ReadAhead, read_ahead
from vllm_supervisor.adapters.readahead.files import mapped, weight_files
from vllm_supervisor.adapters.readahead.mark import NAME, earlier_loads, hold
from vllm_supervisor.core.events import Role
from vllm_supervisor.core.readahead.order import Order
from vllm_supervisor.core.readahead.report import Doing

MIB = 1 << 20
SHARD = 48 * MIB


@pytest.fixture(scope="module")
def checkpoint():
    """Four shards on a disk; /tmp may lie in memory."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    block = os.urandom(MIB)
    for number in range(1, 5):
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.writelines(block for _ in range(SHARD // MIB))
            file.flush()
            os.fsync(file.fileno())
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cold(checkpoint):
    """The same with nothing of it in memory."""
    for path in checkpoint.iterdir():
        cache.give_back(str(path))
    return checkpoint


def shares(folder):
    return [cache.cached_share(str(path), path.stat().st_size) for path in sorted(folder.iterdir())]


def finished(order):
    reports = list(read_ahead(order))
    assert reports, "no report at all"
    return reports[-1]


async def until(client, fits, what):
    """Wait until a report fits."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + at_most(30)
    while not fits(client.report):
        assert client.report.doing is not Doing.FAILED, client.report.why
        assert loop.time() < deadline, f"not within the time: {what}; {client.report}"
        await asyncio.sleep(0.02)
    return client.report


@contextlib.asynccontextmanager
async def reading(order, **more):
    client = ReadAhead(**more)
    task = asyncio.create_task(client.run(order))
    try:
        yield client, task
    finally:
        if not task.cancelling():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert client.pid is None


def test_everything_is_read_and_stays(cold):
    report = finished(Order(str(cold)))
    assert (report.doing, report.why, report.window) == (Doing.DONE, "", False)
    assert (report.shards, report.total_bytes) == (4, 4 * SHARD)
    assert report.read_bytes + report.cached_bytes == 4 * SHARD
    assert report.read_bytes > 3.2 * SHARD
    assert report.reading_seconds > 0
    assert mostly(shares(cold)), shares(cold)


def test_what_lies_in_memory_is_not_read_again(cold):
    finished(Order(str(cold)))
    report = finished(Order(str(cold)))
    assert report.doing is Doing.DONE
    assert report.read_bytes + report.cached_bytes == 4 * SHARD
    assert report.cached_bytes >= MOST * 4 * SHARD


def test_the_links_of_an_overlay_lead_to_the_files(cold, tmp_path):
    for path in cold.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert finished(Order(str(tmp_path))).doing is Doing.DONE
    assert mostly(shares(cold)), shares(cold)


async def test_a_window_follows_the_engine_and_gives_back_what_lies_behind(cold):
    limit = 2 * SHARD
    async with reading(Order(str(cold), limit_bytes=limit)) as (client, task):
        full = await until(client, lambda report: report.doing is Doing.FULL, "the window is full")
        assert full.window
        assert limit - 16 * MIB <= full.ahead_bytes <= limit
        assert mostly(shares(cold)[:2]), shares(cold)
        client.engine_at(0, 4)
        client.engine_at(1, 4)
        await until(client, lambda report: report.met_bytes == 2 * SHARD, "the engine has come to shard 2")
        await until(client, lambda report: report.doing is Doing.FULL, "the window is full again")
        client.engine_at(3, 4)
        last = await until(client, lambda report: report.dropped_bytes > 0, "something is given back")
        last = await until(client, lambda report: report.doing is Doing.DONE, "all is read")
        assert last.dropped_bytes == 2 * SHARD
        assert MOST * 2 * SHARD <= last.hit_bytes <= last.met_bytes == 4 * SHARD
        assert max(shares(cold)[:2]) < 0.5
        task.cancel()


async def test_what_a_process_has_mapped_stays(cold):
    with (cold / "model-2.safetensors").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert mapped(weight_files(Order(str(cold)))) == {1}
        async with reading(Order(str(cold), limit_bytes=SHARD + 20 * MIB)) as (client, _):
            for done in range(4):
                client.engine_at(done, 4)
                await until(client, lambda report: report.doing in {Doing.FULL, Doing.DONE}, "the window is full")
            await until(client, lambda report: report.dropped_bytes == SHARD, "the first shard only")
        assert view[0] is not None


async def test_it_reports_for_the_last_time_when_it_is_ended(cold):
    async with reading(Order(str(cold))) as (client, task):
        await until(client, lambda report: report.total_bytes > 0, "the first report")
        client.engine_at(4, 4)
        pid = client.pid
        task.cancel()
    assert client.report.met_bytes == 4 * SHARD
    assert gone(pid)


async def test_what_it_reads_is_nobodys_progress(cold):
    processes = Processes("no start")
    async with reading(Order(str(cold)), started=processes.helpers.add) as (client, _):
        await until(client, lambda report: report.total_bytes > 0, "the first report")
        assert client.pid not in processes.roles(None)
        assert client.pid not in {process.pid for process in processes.ours()}
        seen = {client.pid: (Role.OTHER, "seen in the moment in which it was started")}
        assert processes.usage(seen).read_bytes == 0
        processes.helpers.clear()
        assert processes.usage(seen).read_bytes > 0


async def test_a_killed_helper_is_told_and_not_replaced(cold):
    async with reading(Order(str(cold))) as (client, task):
        await until(client, lambda report: report.total_bytes > 0, "the first report")
        os.kill(client.pid, signal.SIGKILL)
        async with asyncio.timeout(at_most(10)):
            report = await task
        assert (report.doing, report.why) == (Doing.FAILED, "its helper was ended by SIGKILL")
        client.engine_at(1, 4)


async def test_a_helper_that_stands_still_does_not_hold_the_end_up(cold):
    async with reading(Order(str(cold))) as (client, task):
        await until(client, lambda report: report.total_bytes > 0, "the first report")
        pid = client.pid
        os.kill(pid, signal.SIGSTOP)
        for done in range(20_000):
            client.engine_at(done, 30_000)  # its pipe is full, and nobody waits for it
        task.cancel()
    assert gone(pid)


def test_a_helper_goes_with_its_parent(cold, tmp_path):
    program = (
        "import asyncio, sys\n"
        "from vllm_supervisor.adapters.readahead.client import ReadAhead\n"
        "from vllm_supervisor.core.readahead.order import Order\n"
        "client = ReadAhead()\n"
        "asyncio.run(client.run(Order(sys.argv[1]), lambda _: print(client.pid, flush=True)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(cold)], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: gone(pid), at_most(10), "the helper is gone")


def test_what_memory_does_not_hold_is_not_begun(cold):
    assert "too little" in finished(Order(str(cold), engine_bytes=1 << 60)).why
    whole = finished(Order(str(cold), limit_bytes=SHARD, whole_only=True))
    assert whole.doing is Doing.OFF
    assert "for all of it" in whole.why
    assert max(shares(cold)) < 0.5, "a page that nobody wanted may be there: the kernel reads around what is asked"


def test_a_file_that_cannot_be_read_ends_the_reading_with_its_name(cold, tmp_path):
    (tmp_path / "model-1.safetensors").symlink_to(cold / "model-1.safetensors")
    # A directory has a size, and opens; reading it is an error.
    (tmp_path / "model-2.safetensors").mkdir()
    report = finished(Order(str(tmp_path)))
    assert report.doing is Doing.FAILED
    assert report.why == f"{tmp_path / 'model-2.safetensors'}: Is a directory"


async def test_of_two_loads_the_later_one_waits(cold, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / NAME).write_text("1\n")  # nobody holds it
    early, late = hold(first, 100.0), hold(second, 200.0)
    try:
        assert earlier_loads(first) == []
        assert earlier_loads(second) == ["a"]
        with pytest.raises(OSError):
            hold(first, 50.0)
        async with reading(Order(str(cold), runtime_dir=str(second))) as (client, _):
            report = await until(client, lambda report: report.doing is Doing.PAUSED, "it waits")
            assert (report.why, report.read_bytes) == ("a loads weights", 0)
            os.close(early)
            early = -1
            await until(client, lambda report: report.doing is Doing.DONE, "it goes on")
    finally:
        for descriptor in (early, late):
            if descriptor >= 0:
                os.close(descriptor)
