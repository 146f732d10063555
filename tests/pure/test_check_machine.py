"""Findings about checkpoint, GPUs and machine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from lab.sparse_checkpoint import BITS, EXPERTS, tensors
from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.observed import (
    EngineView,
    GpuObservation,
    GpuSeen,
    Holder,
    Observed,
    ObservedEngine,
    ObservedHost,
    ObservedModel,
)
from vllm_supervisor.core.checkpoint import Tensor
from vllm_supervisor.core.plan.shape import read_shape
from vllm_supervisor.core.plan.weights import tally

GIB = 1 << 30
MODELS = Path(__file__).parents[1] / "corpus" / "models"
KIMI = read_shape(json.loads((MODELS / "kimi-k2.5-nvfp4.json").read_text()))
GOOD_PCIE = {
    "uvm-hmm": "off",
    "iommu": "off",
    "acs": "off",
    "rebar": "on",
    "aspm": "off",
    "port-pm": "off",
    "link-width": "full",
}
GOOD_HOST = ObservedHost(
    limits={"nofile": 1 << 20, "memlock": -1}, shm_bytes=8 * GIB, shm_free_bytes=8 * GIB, pcie=GOOD_PCIE
)


def expanded():
    for name, dtype, shape in tensors(experts=1):
        times = EXPERTS if ".experts." in name else 1
        yield Tensor(name, dtype, tuple(shape), math.prod(shape) * BITS[dtype] // 8 * times)


MODEL = ObservedModel(path="/m", shape=KIMI, tally=tally(expanded(), KIMI))
NCCL = {"NCCL_P2P_LEVEL": "SYS"}


def cards(
    count=8, used=0, processes=(), name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition", total=int(95.6 * GIB)
):
    return GpuObservation(
        tuple(GpuSeen(index, f"GPU-{index:x}a", name, total, used, (12, 0), processes) for index in range(count)),
        "580.1",
    )


def check(args=None, *, env=None, gpus=None, host=GOOD_HOST, model=MODEL, version="0.18.0", **view):
    settings = {"tensor-parallel-size": 8, "max-model-len": 131072, "gpu-memory-utilization": 0.95} | (args or {})
    engine_view = EngineView(
        **({"command": ("vllm", "serve"), "model": "/m", "args": settings, "env": NCCL | (env or {})} | view)
    )
    return findings(engine_view, Observed(ObservedEngine("/x", version=version), model, host, gpus or cards()))


def by(items, name):
    return [item for item in items if item.check == name]


def test_the_deployment_passes():
    assert [item.check for item in check()] == ["overlay"], "an old engine on these cards needs the overlay"
    assert check(version="0.32.0") == ()


def test_the_third_launch_is_refused_before_it_loads_for_nine_minutes():
    (item,) = by(check({"max-model-len": 262144, "gpu-memory-utilization": 0.9}), "memory")
    assert (item.level, item.reason) == ("refuse", "kv-cache-too-small")
    assert "262144 tokens of context do not fit" in item.seen
    assert item.remedy == "set max-model-len = 131072, or gpu-memory-utilization = 0.95 for more"


def test_what_is_near_is_told_but_not_refused():
    (item,) = by(check({"max-model-len": 262144}), "memory")
    assert item.level == "warn", "the estimate of 247,760 may be off by as much"


@pytest.mark.parametrize("length", ["auto", -1, "-1"])
def test_an_automatic_length_always_fits(length):
    assert not by(check({"max-model-len": length}), "memory")


def test_weights_that_do_not_fit():
    (item,) = by(check({"tensor-parallel-size": 4}), "memory")
    assert item.reason == "gpu-out-of-memory"
    assert "140.2 GiB" in item.seen


@pytest.mark.parametrize(
    ("args", "check_name", "reason"),
    [
        ({"tensor-parallel-size": 3}, "parallel", "tensor-parallel-invalid"),
        ({"max-model-len": 524288}, "context", "max-model-len-too-long"),
        ({"kv-cache-dtype": "fp8"}, "kv-cache-dtype", "unsupported-kernel"),
    ],
)
def test_options_against_the_checkpoint(args, check_name, reason):
    (item,) = by(check(args), check_name)
    assert (item.level, item.reason) == ("refuse", reason)


def test_a_longer_context_can_be_forced():
    forced = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert not by(check({"max-model-len": 524288}, env=forced), "context")
    # The cache bounds it then, not the model's own context.
    assert by(check({"max-model-len": 524288}, env=forced), "memory")
    small = replace(MODEL, shape=replace(MODEL.shape, context=2048))
    assert not by(check({"max-model-len": 65536}, env=forced, model=small), "memory")
    (item,) = by(check({"max-model-len": 524288}, env=forced, model=small), "memory")
    assert item.reason == "kv-cache-too-small"


def test_an_overlay_that_is_off_though_it_is_needed():
    (item,) = by(check(overlay="off"), "kv-cache-dtype")
    assert item.reason == "unsupported-kernel"
    assert item.remedy == 'set overlay = "auto"'
    assert not by(check(overlay="off", version="0.32.0"), "kv-cache-dtype")


@pytest.mark.parametrize(
    ("model", "reason", "words"),
    [
        (
            ObservedModel("/m", problems=(("checkpoint-corrupt", "a.st is truncated; download it again"),)),
            "checkpoint-corrupt",
            "a.st",
        ),
        (ObservedModel("/m", unreadable=("/m/a", "/m/b")), "model-not-found", "/m/a and 1 more"),
        (ObservedModel("/m", strays=("model-00003-of-00002.safetensors",)), "checkpoint-mismatch", "no index"),
        (ObservedModel("/m", strays=("extra.safetensors",)), "", "no index"),
        (ObservedModel("/m", tokenizer=False), "", "tokenizer"),
        (ObservedModel("/m", hub=True), "", "hub cache"),
        (ObservedModel("/m", timed_out=True), "", "in time"),
        (ObservedModel("/m", unplanned="config.json has no hidden_size"), "checkpoint-mismatch", "hidden_size"),
    ],
)
def test_the_files(model, reason, words):
    items = [item for item in check(model=model) if item.check in {"model", "tokenizer"}]
    assert [item.reason for item in items] == [reason]
    assert words in items[0].seen
    assert items[0].remedy


def test_gpus_that_are_not_there():
    assert by(check(gpus=GpuObservation(())), "gpus")[0].reason == "driver-mismatch"
    (item,) = by(check(gpus=cards(7)), "gpus")
    assert item.reason == "tensor-parallel-invalid"
    assert "8 GPUs are needed and 7 are there" in item.seen
    assert "Xid" in item.remedy
    (item,) = by(check(env={"CUDA_VISIBLE_DEVICES": "0,1,2"}), "gpus")
    assert "engine.gpus (or CUDA_VISIBLE_DEVICES) hides others" in item.seen
    assert not by(check(env={"CUDA_VISIBLE_DEVICES": "GPU-0a,1,2,3,4,5,6,7"}), "gpus")


def test_gpus_that_are_lost():
    """Also when none is left: the driver answers, and it is no matter of its version."""
    for left in (7, 0):
        (item,) = by(check(gpus=replace(cards(left), lost=(7,))), "gpus")
        assert item.reason == "gpu-lost"
        assert item.seen == f"{left} of the GPUs that are needed (8) are there; the driver cannot reach GPU 7"
    (item,) = by(check(gpus=replace(cards(8), lost=(8,))), "gpus")
    assert (item.level.name, "cannot reach GPU 8, which the engine does not need" in item.seen) == ("WARN", True)
    chosen = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    assert not by(check(gpus=replace(cards(8), lost=(8,)), env=chosen), "gpus")


def test_a_busy_gpu_names_its_holder():
    gpus = cards(8, used=70 * GIB, processes=((4711, 70 * GIB),))
    host = ObservedHost(gpu_holders={4711: Holder(4711, "VLLM::Worker_TP0", "vllm", "old.service")}, pcie=GOOD_PCIE)
    items = by(check(gpus=gpus, host=host), "gpu-memory")
    assert {item.reason for item in items} == {"gpu-busy"}
    assert len(items) == 8
    assert "pid 4711 (VLLM::Worker_TP0, user vllm) of old.service: 71680 MiB" in items[0].seen


def test_memory_that_nobody_shows():
    (item, *_) = by(check(gpus=cards(8, used=70 * GIB)), "gpu-memory")
    assert "no process shows" in item.seen


def test_the_drivers_own_memory_is_no_holder():
    assert not by(check(gpus=cards(8, used=int(0.65 * GIB))), "gpu-memory")


def test_without_gpus_on_the_cpu():
    assert check({"tensor-parallel-size": 1}, gpus=GpuObservation(()), device="cpu") == ()


def test_different_cards_are_told():
    mixed = GpuObservation((*cards(7).gpus, GpuSeen(7, "GPU-h", "NVIDIA H200", 139 * GIB, 0, (9, 0))))
    assert "bounds all" in by(check(gpus=mixed), "gpus")[0].seen


@pytest.mark.parametrize(
    ("host", "name", "level", "reason"),
    [
        (ObservedHost(port_holder=Holder(9, "python3", "alice", "other.service")), "port", "refuse", "port-in-use"),
        (ObservedHost(metrics_holder=Holder(9)), "metrics-port", "warn", ""),
        (ObservedHost(limits={"nofile": 1024}), "ulimits", "warn", ""),
        (ObservedHost(limits={"memlock": 8 << 20}), "ulimits", "warn", ""),
        (ObservedHost(shm_bytes=64 << 20, shm_free_bytes=64 << 20), "shm", "refuse", "shm-too-small"),
        (ObservedHost(shm_bytes=8 * GIB, shm_free_bytes=1 << 20), "shm", "refuse", "shm-too-small"),
        (ObservedHost(shm_bytes=3 * GIB, shm_free_bytes=1000 << 20), "shm", "refuse", "shm-too-small"),
        (ObservedHost(shm_bytes=3 * GIB, shm_free_bytes=1100 << 20), "shm", "warn", ""),
        (ObservedHost(caches={"/var/cache/x": None}), "caches", "warn", ""),
        (ObservedHost(caches={"/var/cache/x": 1 << 20}), "caches", "refuse", "disk-full"),
        (ObservedHost(caches={"/var/cache/x": 2 * GIB}), "caches", "warn", ""),
    ],
)
def test_the_machine(host, name, level, reason):
    (item,) = by(check(host=host), name)
    assert (item.level, item.reason) == (level, reason)
    assert item.remedy


def test_of_several_machines_only_what_this_one_runs_is_wanted():
    scarce = ObservedHost(shm_bytes=64 << 20, shm_free_bytes=64 << 20, port_holder=Holder(9))
    alone, head, second = (
        check(args, host=scarce) for args in ({}, {"nnodes": 2, "node-rank": 0}, {"nnodes": 8, "node-rank": 1})
    )
    assert "8 workers" in by(alone, "shm")[0].seen
    assert "4 workers" in by(head, "shm")[0].seen
    assert by(second, "shm") == []
    assert [bool(by(items, "port")) for items in (alone, head, second)] == [True, True, False]


def test_the_ports_holder_is_named_with_the_way_to_stop_it():
    (item,) = by(check(host=ObservedHost(port_holder=Holder(9, "python3", "alice", "other.service"))), "port")
    assert item.seen == "port 8000 of 127.0.0.1 is held by pid 9 (python3, user alice) of other.service"
    assert "systemctl stop other.service" in item.remedy
