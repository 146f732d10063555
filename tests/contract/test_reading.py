"""The daemon's room for reading ahead: whatever goes wrong in it is told, and ends nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from process.harness import write_config
from vllm_supervisor.adapters.readahead.mark import earlier_loads
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.readahead.report import Doing
from vllm_supervisor.core.state import initial
from vllm_supervisor.daemon import readahead as room
from vllm_supervisor.daemon.instance import read_instance


def made(folder: Path) -> room.Reading:
    instance = read_instance(write_config(folder), state_dir=folder, runtime_dir=folder / "fake")
    assert not isinstance(instance, list), instance
    instance.runtime_dir.mkdir(exist_ok=True)
    return room.Reading(instance, set(), environment={}, version="0.32.0", log=structlog.get_logger())


async def test_a_bug_of_ours_does_not_end_the_load(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(room, "locate", fails)
    reading = made(tmp_path)
    reading.begin("/m", 1.0)
    async with asyncio.timeout(10):
        await reading._task
    assert (reading.report.doing, reading.report.why) == (Doing.FAILED, "RuntimeError: no such luck")
    assert not reading.active
    await reading.close()


async def test_others_see_the_load_until_the_weights_are_there(tmp_path):
    reading = made(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    loading = initial(Policy(), 0.0).enter(Phase.LAUNCHING, 1.0)
    reading.begin("/nonexistent", 1.0)
    reading.follow(loading)
    assert earlier_loads(other) == ["fake"]
    reading.follow(loading.enter(Phase.LOADING_WEIGHTS, 2.0))
    assert earlier_loads(other) == ["fake"]
    reading.follow(loading.enter(Phase.COMPILING, 3.0))
    assert earlier_loads(other) == []
    await reading.close()


async def test_a_report_survives_a_re_execution_and_one_of_another_version_is_forgotten(tmp_path):
    reading = made(tmp_path)
    reading.resume({"doing": "done", "total_bytes": 5})
    assert reading.report.total_bytes == 5
    again = made(tmp_path)
    again.resume(reading.carried())
    assert again.report == reading.report
    assert again.view()["doing"] is Doing.ENDED
    again.resume({"doing": "dancing"})
    again.resume({})
    assert again.report == reading.report
