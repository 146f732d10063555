"""The step of a snapshot that sees the GPUs free: through NVML's stand-in, as the operation reads it."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake.gpus import FAKE_NVML, FakeGpus
from vllm_supervisor.commands.operations import snapshotting
from vllm_supervisor.commands.operations.served import StepError
from vllm_supervisor.core.check.observed import EngineView
from vllm_supervisor.daemon import neighbours

GIB = 1 << 30


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Four cards, and a clock on which a minute is over after the second look."""
    cards = FakeGpus(tmp_path, count=4)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(FAKE_NVML), os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("VSUP_FAKE_NVML", str(cards.path))
    ticks = count(0, 40)
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), sleep=lambda _: None)
    monkeypatch.setattr(snapshotting, "time", clock)
    return cards


def look(
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
    chosen: str | None = None,
    params: dict[str, float] | None = None,
    **view: Any,
) -> str:
    env = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    found = EngineView(command=("vllm", "serve"), model="/srv/model", env=env, **view)
    monkeypatch.setattr(neighbours, "view_of", lambda _: found)
    it: Any = SimpleNamespace(instance=lambda: None)
    journal: Any = SimpleNamespace(head=lambda: {"params": params or {}})
    return snapshotting.Snapshotting(it, journal).gpus("gpus", said.append)


def test_free_cards_are_free_and_the_cpu_has_none(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.path.exists()
    assert look(monkeypatch, []) == "every GPU is free"
    assert look(monkeypatch, [], device="cpu") == "this instance uses no GPU"


def test_a_card_that_is_held_is_named_with_its_holder(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.card(2, memory_used=90 * GIB, processes=[[4711, 90 * GIB]])
    said: list[str] = []
    with pytest.raises(StepError, match=r"^1 min after the stop GPU 2 still holds 90\.0 GiB, held by pid 4711\b"):
        look(monkeypatch, said)
    assert len(said) > 1, "it waits before it gives up"
    said.clear()
    with pytest.raises(StepError, match=r"^0\.0 s after the stop GPU 2 still holds"):
        look(monkeypatch, said, params={"free_within_s": 0.0})
    assert len(said) == 1, "it looks once"
    gpus.card(2, processes=[])
    with pytest.raises(StepError, match="no process shows"):
        look(monkeypatch, [])
    assert look(monkeypatch, [], "0,1,3") == "every GPU is free", "another instance's card is none of ours"


def test_memory_that_is_let_go_meanwhile_is_free(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.card(0, memory_used=90 * GIB)
    said: list[str] = []
    monkeypatch.setattr(snapshotting.time, "sleep", lambda _: gpus.card(0, memory_used=0))
    assert look(monkeypatch, said) == "every GPU is free"
    assert said == ["GPU 0 still holds 90.0 GiB; no process shows; see nvidia-smi"]


def test_what_cannot_be_read_is_not_free(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.card(1, lost=True)
    with pytest.raises(StepError, match="cannot reach GPU 1"):
        look(monkeypatch, [])
    with pytest.raises(StepError, match="cannot reach GPU 1"):
        look(monkeypatch, [], "0,1")
    assert look(monkeypatch, [], "0,2,3") == "every GPU is free"
    gpus.card(1, lost=False)
    gpus.write(hang=["nvmlDeviceGetCount"])
    with pytest.raises(StepError, match="driver does not answer"):
        look(monkeypatch, [])


def test_no_driver_at_all_is_said(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.write(errors={"nvmlInit": 9})
    assert "not checked" in look(monkeypatch, [])
