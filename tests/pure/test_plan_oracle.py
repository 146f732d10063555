"""The planner against the figures of the deployment that it was built around."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lab.sparse_checkpoint import BITS, EXPERTS, tensors
from vllm_supervisor.core.checkpoint import Tensor
from vllm_supervisor.core.plan import kvcache, planner
from vllm_supervisor.core.plan.request import Measured, PlanRequest
from vllm_supervisor.core.plan.shape import read_shape
from vllm_supervisor.core.plan.weights import tally

MODELS = Path(__file__).parents[1] / "corpus" / "models"
GIB = 1 << 30
CARD = int(95.6 * GIB)
KIMI = read_shape(json.loads((MODELS / "kimi-k2.5-nvfp4.json").read_text()))


def kimi_tensors():
    """Expert 0 of each layer stands for all of them, or 277,000 tensors would be added up in each run."""
    for name, dtype, shape in tensors(experts=1):
        times = EXPERTS if ".experts." in name else 1
        yield Tensor(name, dtype, tuple(shape), math.prod(shape) * BITS[dtype] // 8 * times)


@pytest.fixture(scope="module")
def counted():
    return tally(kimi_tensors(), KIMI)


def plans(counted, **changes):
    request = PlanRequest(**({"gpus": 8, "memory_bytes": CARD} | changes))
    return {entry.tensor_parallel_size: entry for entry in planner.plan(KIMI, counted, request)}


def test_one_entry_for_every_size_that_divides_heads_and_gpus(counted):
    assert sorted(plans(counted)) == [1, 2, 4, 8]
    assert sorted(plans(counted, gpus=6)) == [1, 2]


def test_weights_at_eight_gpus(counted):
    assert plans(counted)[8].weights_bytes_per_gpu / GIB == pytest.approx(70.81, rel=0.03)


def test_bytes_a_token_are_the_same_at_every_size(counted):
    assert {entry.kv_bytes_per_token for entry in plans(counted).values()} == {70_272}


def test_given_memory_becomes_tokens(counted):
    entry = plans(counted, kv_cache_memory=int(11.7 * GIB))[8]
    assert entry.max_tokens == pytest.approx(178_000, rel=0.01)
    assert (entry.max_tokens, entry.max_model_len) == (178_768, 178_752)
    assert entry.sources["kv_cache"] == "given"


@pytest.mark.parametrize(
    ("block", "tokens", "longest"),
    [(16, 178_768, 178_752), (32, 178_752, 178_720), (64, 178_752, 178_688), (128, 178_688, 178_560)],
)
def test_blocks_and_the_null_block(block, tokens, longest):
    """The engine's own functions gave these figures for 11.7 GiB."""
    cache = kvcache.layout(KIMI, 8, 1, 2, block)
    memory = int(11.7 * GIB)
    assert kvcache.longest(cache, memory, 262_144, 8192) == longest
    assert kvcache.capacity(cache, memory, longest, 8192) == tokens


def test_four_gpus_are_refused_with_the_figures(counted):
    entry = plans(counted)[4]
    assert not entry.fits
    assert "TP=4 needs 140.2 GiB" in entry.reasons[0]
    assert "95.6 GiB are there" in entry.reasons[0]
    assert (entry.max_tokens, entry.max_model_len, entry.suggested_args) == (0, 0, ())


def test_the_failed_launch_at_090(counted):
    entry = plans(counted, utilization=0.9)[8]
    assert entry.fits
    assert entry.kv_cache_bytes_per_gpu / GIB == pytest.approx(11.7, abs=0.5)
    assert entry.overhead_bytes_per_gpu / GIB == pytest.approx(3.5, abs=0.3)
    assert entry.max_model_len < 262_144


def test_the_launch_that_worked_at_095(counted):
    entry = plans(counted, utilization=0.95)[8]
    assert 131_072 <= entry.max_model_len < 262_144
    args = entry.suggested_args
    assert args[args.index("--tensor-parallel-size") + 1] == "8"
    assert int(args[args.index("--max-model-len") + 1]) <= entry.max_model_len * 0.95
    assert args[args.index("--gpu-memory-utilization") + 1] == "0.95"


def test_an_fp8_cache_only_where_it_is_known_to_work(counted):
    blackwell = {"capability": (12, 0), "utilization": 0.95}
    assert plans(counted)[8].kv_cache_dtype == "auto"
    old = plans(counted, **blackwell, version=(0, 18, 0))[8]
    assert old.kv_cache_dtype == "auto"
    assert "make an overlay" in old.notes[0]
    new = plans(counted, **blackwell, version=(0, 32, 0))[8]
    assert (new.kv_cache_dtype, new.kv_bytes_per_token) == ("fp8", 35_136)
    assert new.max_model_len == 262_144
    refused = plans(counted, **blackwell, version=(0, 18, 0), kv_cache_dtype="fp8")[8]
    assert not refused.fits
    assert "FP8" in refused.reasons[0]


def test_the_default_utilisation_is_the_engines(counted):
    assert plans(counted, version=(0, 18, 1))[8].gpu_memory_utilization == 0.90
    assert plans(counted, version=(0, 20, 2))[8].gpu_memory_utilization == 0.92
    assert plans(counted)[8].gpu_memory_utilization == 0.90


def test_measured_figures_take_the_estimates_place(counted):
    start = Measured(
        tensor_parallel_size=8,
        weights_bytes=int(70.81 * GIB),
        overhead_bytes=int(3.53 * GIB),
        kv_cache_bytes=int(11.7 * GIB),
        kv_cache_tokens=178_768,
        gpu_memory_utilization=0.9,
        kv_cache_dtype="auto",
    )
    again = plans(counted, utilization=0.9, measured=(start,))
    assert again[8].weights_bytes_per_gpu == int(70.81 * GIB)
    assert again[8].max_tokens == 178_768
    assert set(again[8].sources.values()) == {"measured"}
    assert set(again[4].sources.values()) == {"estimated"}, "another split was never measured"
    other = plans(counted, utilization=0.95, measured=(start,))[8]
    assert other.sources == {"weights": "measured", "overhead": "measured", "kv_cache": "estimated"}
    assert other.kv_cache_bytes_per_gpu / GIB == pytest.approx(95.6 * 0.95 - 70.81 - 3.53, abs=0.01)


@pytest.mark.parametrize(
    ("name", "gib", "tokens", "tolerance"),
    [("deepseek-v3-3-layers", 41.09, 12_764_896, 0.0005), ("qwen2-2-layers", 0.38, 99_264, 0.014)],
)
def test_figures_measured_on_a_real_gpu(name, gib, tokens, tolerance):
    """The log rounds the memory to 0.01 GiB, which is 1.3 % of the smaller one."""
    shape = read_shape(json.loads((MODELS / f"{name}.json").read_text()))
    cache = kvcache.layout(shape, 1, 1, 2)
    memory = int(gib * GIB)
    longest = kvcache.longest(cache, memory, shape.context, 8192)
    assert kvcache.capacity(cache, memory, longest, 8192) == pytest.approx(tokens, rel=tolerance)
