"""One short reading of the GPUs: of this machine, and of a stand-in binding."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from vllm_supervisor.adapters.nvml_once import parse, read_once

FAKE = Path(__file__).parents[1] / "lab" / "fake_nvml"


@pytest.fixture
def binding(tmp_path, monkeypatch):
    """Describe the GPUs that the stand-in shows."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("VSUP_FAKE_NVML", str(tmp_path / "gpus.json"))

    def describe(**machine):
        (tmp_path / "gpus.json").write_text(json.dumps({"driver": 1} | machine))

    return describe


def test_gpus_with_their_processes(binding):
    binding(gpus=[{"uuid": "GPU-0", "memory_used": 5, "memory_total": 9, "processes": [[123, 4096], [7, None]]}])
    (gpu,) = read_once().gpus
    assert (gpu.index, gpu.uuid, gpu.used_bytes, gpu.total_bytes) == (0, "GPU-0", 5, 9)
    assert gpu.processes == ((123, 4096), (7, 0))
    assert "RTX PRO 6000" in gpu.name
    assert gpu.compute_capability == (0, 0), "the stand-in does not know it, as old bindings"


def test_a_lost_gpu_is_named_and_left_out(binding):
    binding(gpus=[{"uuid": "GPU-0"}, {"uuid": "GPU-1", "lost": True}, {"uuid": "GPU-2"}])
    seen = read_once()
    assert [gpu.index for gpu in seen.gpus] == [0, 2]
    assert seen.lost == (1,)


def test_a_driver_that_refuses_is_none_and_one_that_hangs_is_silent(binding):
    binding(gpus=[], errors={"nvmlInit": 18})
    assert read_once() is None
    binding(gpus=[{}], hang=["nvmlDeviceGetCount"])
    begin = time.monotonic()
    assert read_once(deadline_s=1.0).silent
    assert time.monotonic() - begin < 3


def test_one_reading_of_the_gpus_ends_in_time():
    seen = read_once()
    assert seen is None or seen.gpus or seen.silent
    assert read_once(deadline_s=0.0).silent


@pytest.mark.parametrize("output", [b"", b"[]", b"{}", b'{"gpus": [{}], "driver": ""}', b'{"gpus": 3}'])
def test_a_reading_that_is_none(output):
    assert parse(output) is None


def test_a_reading():
    text = (
        b'{"driver": "580", "gpus": [{"index": 1, "uuid": "GPU-1", "name": "X", "total": 9, "used": 2, '
        b'"capability": [12, 0], "processes": [[7, 1]]}]}'
    )
    seen = parse(text)
    assert (seen.driver_version, seen.gpus[0].compute_capability, seen.gpus[0].processes) == ("580", (12, 0), ((7, 1),))
