"""Findings about weights that `vllm preload` holds, and whose its processes are."""

import pytest

from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.gpus import not_free
from vllm_supervisor.core.check.observed import (
    EngineView,
    GpuObservation,
    GpuSeen,
    Holder,
    Observed,
    ObservedEngine,
    ObservedHost,
)
from vllm_supervisor.core.held import LONGEST_DIRECTORY, remarks, units_of
from vllm_supervisor.core.heldfit import HeldSeen, differing, wanted
from vllm_supervisor.core.ownership import Seen, owned

GIB = 1 << 30
GOOD = '{"socket_dir": "/var/cache/weights", "fallback": false}'


def check(
    extra=None, *, names=("weights",), version="0.32.0", device="cuda", used=0, holder=None, half="", held=None, **args
):
    options = {"load-format": "ipc_cache", **args}
    if extra is not None:
        options["model-loader-extra-config"] = extra
    processes = ((7, used),) if holder else ()
    gpu = GpuSeen(0, "GPU-a", "card", 96 * GIB, used, (12, 0), processes)
    seen = Observed(
        engine=ObservedEngine("/opt/vllm/bin/vllm", version=version),
        gpus=GpuObservation((gpu,), "580.1"),
        host=ObservedHost(gpu_holders={7: holder} if holder else {}),
        held=held,
    )
    view = EngineView(("/opt/vllm/bin/vllm", "serve"), "/m", device=device, args=options, name="kimi", weights=half)
    return [str(item) for item in findings(view, seen) if item.check in names]


def test_weights_in_reach_without_a_silent_way_back_are_no_finding():
    assert check(GOOD) == []
    dotted = {"model-loader-extra-config.socket_dir": "/x", "model-loader-extra-config.fallback": "false"}
    assert check(**dotted) == []


def test_other_loaders_are_no_finding():
    assert check(**{"load-format": "auto", "enable-sleep-mode": True}) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"device": "cpu"}, "this engine runs on the CPU; remove load-format = ipc_cache"),
        ({"version": "0.30.2"}, "vLLM 0.30.2 has no `vllm preload`"),
        ({"enable-sleep-mode": True}, "sleep mode cannot free weights that another process holds"),
        ({"extra": "[1]"}, "model-loader-extra-config is no JSON object"),
        ({"extra": "{"}, "model-loader-extra-config is no JSON object"),
    ],
)
def test_what_the_engine_would_refuse_late_is_refused_first(changed, sentence):
    (text,) = check(**{"extra": GOOD, **changed})
    assert text.startswith("refuse: weights: ")
    assert sentence in text


def test_a_private_socket_directory_and_the_silent_way_back_to_the_disk_are_told():
    private, silent = check()
    assert private.startswith("warn: weights: the engine looks for the sockets of vllm preload in its own TMPDIR")
    assert silent.startswith("warn: weights: without vllm preload")
    # False leaves a dotted option out of the command line: the engine falls back all the same.
    assert len(check('{"socket_path": "/x"}', **{"model-loader-extra-config.fallback": False})) == 1


def test_memory_that_preload_holds_does_not_refuse_the_engine_that_maps_it():
    holder = Holder(7, "python3", "vllm", "kimi-weights.service")
    (text,) = check(GOOD, names=("gpu-memory",), used=71 * GIB, holder=holder)
    assert text.startswith("warn: gpu-memory: GPU 0 has ")
    assert "held by pid 7 (python3, user vllm) of kimi-weights.service: 72704 MiB; right if vllm preload" in text
    (text,) = check(GOOD, names=("gpu-memory",), used=71 * GIB)
    assert "; no process shows; right if" in text
    (text,) = check(GOOD, names=("gpu-memory",), used=71 * GIB, holder=holder, **{"load-format": "auto"})
    assert text.startswith("refuse: gpu-memory: ")


def test_processes_of_preload_in_a_unit_of_their_own_are_never_ours():
    engine = Seen(11, 10, "vllm", "vllm serve", cgroup="/system.slice/kimi.service", start_id="aabb")
    held = Seen(20, 1, "vllm", "vllm preload", cgroup="/system.slice/kimi-weights.service")
    rank = Seen(21, 20, "python3", "python3", cgroup="/system.slice/kimi-weights.service")
    found = owned((engine, held, rank), self_pid=10, start_id="aabb", unit_cgroup="/system.slice/kimi.service")
    assert found == (engine,)


@pytest.mark.parametrize("half", ["held", "holder"])
@pytest.mark.parametrize(
    ("changed", "seen"), [({"device": "cpu"}, "on the CPU"), ({"version": "0.30.2"}, "0.30.2 has no")]
)
def test_both_halves_are_refused_where_no_second_unit_can_hold_weights(half, changed, seen):
    (text,) = check(**{"extra": GOOD, "half": half, **changed})
    assert text.startswith("refuse: weights: ")
    assert seen in text
    assert text.endswith("set weights.held = false")


def test_the_half_that_holds_needs_no_sockets_of_others():
    assert check(half="holder", **{"load-format": "auto"}) == []
    assert len(check(half="holder", **{"load-format": "auto", "enable-sleep-mode": True})) == 1


@pytest.mark.parametrize("unit", units_of("kimi"))
def test_memory_of_the_unit_of_the_weights_is_expected_and_all_other_is_not(unit):
    holder = Holder(7, "python3", "vllm", unit)
    assert check(GOOD, half="held", names=("gpu-memory",), used=71 * GIB, holder=holder) == []
    other = Holder(7, "python3", "vllm", "other-weights.service")
    assert len(check(GOOD, half="held", names=("gpu-memory",), used=71 * GIB, holder=other)) == 1
    view = EngineView(("vllm", "serve"), "/m", name="kimi", weights="held")
    gpus = GpuObservation((GpuSeen(0, "GPU-a", "card", 96 * GIB, 71 * GIB, (12, 0), ((7, 71 * GIB),)),), "580.1")
    assert not_free(view, gpus, {7: holder}) == ""
    assert "still holds" in not_free(view, gpus, {7: other})
    assert "still holds" in not_free(view, gpus)


@pytest.mark.parametrize(("sizes", "free"), [([(7, 0)], True), ([(7, 0), (9, 0)], False), ([(9, 0)], False)])
def test_weights_whose_size_nvml_does_not_tell_are_all_that_is_there_when_nobody_else_is(sizes, free):
    holders = {7: Holder(7, "python3", "vllm", units_of("kimi")[0]), 9: Holder(9, "python3", "bob", "")}
    view = EngineView(("vllm", "serve"), "/m", name="kimi", weights="held")
    gpus = GpuObservation((GpuSeen(0, "GPU-a", "card", 96 * GIB, 71 * GIB, (12, 0), tuple(sizes)),), "580.1")
    assert (not_free(view, gpus, holders) == "") is free


def test_a_directory_too_long_for_a_socket_is_refused():
    def directory(length):
        return f'{{"socket_dir": "/{"x" * (length - 1)}", "fallback": false}}'

    assert check(directory(LONGEST_DIRECTORY), half="held") == []
    (text,) = check(directory(LONGEST_DIRECTORY + 1), half="held")
    assert "longer paths than the kernel takes" in text


def test_a_plan_says_what_held_weights_cost_and_rule_out():
    (none,) = remarks((0, 30, 9))
    assert "came with vLLM 0.31" in none
    costs, rules = remarks((0, 32, 0))
    assert "518 MiB or more of each GPU" in costs
    assert "sleep mode" in rules


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (
            HeldSeen("kimi-weights"),
            "kimi-weights is not running; the engine waits 300 s for them: start kimi-weights or vllm-weights@kimi, see ",
        ),
        (HeldSeen("kimi-weights", running=True), "kimi-weights does not hold all weights yet; the engine waits 300 s"),
        (
            HeldSeen("kimi-weights", running=True, ready=True, differing=("dtype", "model")),
            "kimi-weights holds weights of other settings (dtype, model), which the engine may refuse; stop this",
        ),
    ],
)
def test_held_weights_that_are_not_there_or_do_not_fit_are_told(held, sentence):
    (text,) = check(GOOD, half="held", held=held)
    assert text.startswith(f"warn: weights: {sentence}")
    assert check(GOOD, half="holder", held=held) == []


def test_held_weights_that_are_there_are_no_finding():
    assert check(GOOD, half="held", held=HeldSeen("kimi-weights", running=True, ready=True)) == []


def test_what_decides_whether_weights_fit_is_compared_by_the_options_own_names():
    ours = wanted(
        "/opt/vllm/bin/vllm", "/m", {"tensor-parallel-size": 8, "max-model-len": 4096, "load-format": "ipc_cache"}
    )
    same = wanted("/opt/vllm/bin/vllm", "/m", {"tensor_parallel_size": 8, "pipeline-parallel-size": 1})
    assert differing(ours, same) == ()
    other = wanted(
        "/opt/vllm-0.33/bin/vllm", "/m2", {"tensor-parallel-size": 4, "dtype": "float16", "quantization": "fp8"}
    )
    assert differing(ours, other) == ("dtype", "model", "quantization", "tensor-parallel-size", "vllm")
    assert differing(ours, {"model": "/m2"}) == ("model",)
