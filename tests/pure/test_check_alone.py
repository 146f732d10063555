"""What keeps a snapshot from its GPUs is refused before the outage: memory of processes that are not the engine's."""

from dataclasses import replace

import pytest

from vllm_supervisor.core.check.gpus import check_alone
from vllm_supervisor.core.check.observed import EngineView, GpuObservation, GpuSeen, Holder

GIB = 1 << 30
VIEW = EngineView(("vllm", "serve"), "/m", name="kimi")
STRANGER = Holder(7, "python3", "kim", "jupyter.service")


def told(used, processes, holders, view=VIEW):
    cards = (
        GpuSeen(0, "GPU-a", "card", 96 * GIB, 0, (12, 0)),
        GpuSeen(1, "GPU-b", "card", 96 * GIB, used, (12, 0), processes),
    )
    return [str(item) for item in check_alone(view, GpuObservation(cards, "580.1"), holders)]


def test_a_stranger_is_named():
    (line,) = told(3 * GIB, ((7, 3 * GIB),), {7: STRANGER})
    assert line.startswith("refuse: gpu-memory: GPU 1 would not be free after the stop: it is held by pid 7 (python3, ")
    assert line.endswith("user kim) of jupyter.service: 3072 MiB; stop that process, or use --no-stop")


@pytest.mark.parametrize(
    ("used", "processes", "holders", "view"),
    [
        pytest.param(3 * GIB, ((7, 3 * GIB),), {7: Holder(7)}, VIEW, id="nobody here knows that pid"),
        pytest.param(3 * GIB, (), {}, VIEW, id="no process shows"),
        pytest.param(GIB, ((7, GIB),), {7: STRANGER}, VIEW, id="no more than the driver itself takes"),
        pytest.param(3 * GIB, ((7, 3 * GIB),), {7: STRANGER}, replace(VIEW, device="cpu"), id="no GPU is used"),
        pytest.param(
            3 * GIB, ((7, 3 * GIB),), {7: STRANGER}, replace(VIEW, env={"CUDA_VISIBLE_DEVICES": "0"}), id="not its card"
        ),
        pytest.param(
            3 * GIB,
            ((7, 3 * GIB),),
            {7: replace(STRANGER, unit="kimi-weights.service")},
            replace(VIEW, weights="held"),
            id="its weights",
        ),
    ],
)
def test_what_is_none_of_it_is_not(used, processes, holders, view):
    assert told(used, processes, holders, view) == []
