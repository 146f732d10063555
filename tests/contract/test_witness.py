"""An OOM kill that the cgroup counts is told before the death that it caused, in whatever way both are seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from vllm_supervisor.adapters.kernel_log import KernelLine
from vllm_supervisor.adapters.log import logger
from vllm_supervisor.core.events import EngineExited, Event, Faulted, ProcessDied, Role
from vllm_supervisor.daemon.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER = ProcessDied(12, Role.WORKER, "VLLM::Worker_TP1")
KILLED = EngineExited(-9)
CRASHED = EngineExited(1)


class Counter:
    """A counter of OOM kills that gives one reading after the other, the last one for ever; None: it cannot be read."""

    cgroup = "/system.slice/kimi.service"

    def __init__(self, *readings: int | None) -> None:
        self.left = list(readings)

    def read(self) -> int | None:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


class Kernel:
    """A kernel that says these lines at once."""

    pid = None

    def __init__(self, heard: Callable[[KernelLine], None], lines: tuple[str, ...]) -> None:
        self.heard, self.lines = heard, lines

    async def run(self) -> None:
        for line in self.lines:
            self.heard(KernelLine(0.0, line))
        await asyncio.Event().wait()


async def heard(
    counter: Counter,
    *deaths: Event,
    looks: int = 0,
    alive: bool = True,
    helpers: list[int],
    lines: tuple[str, ...] = (),
) -> list[Event]:
    """What the loop gets, after some looks and then those deaths; `helpers`: how many were killed, look by look."""
    events: list[Event] = []
    witness = Witness(
        events.append,
        kernel=lambda heard: Kernel(heard, lines),  # type: ignore[arg-type, return-value]
        counter=counter,  # type: ignore[arg-type]
        gpu_table=lambda: None,
        machine_gpus=lambda: 0,
        alive=lambda: alive,
        helpers={77},
        helpers_killed=lambda: helpers.pop(0) if len(helpers) > 1 else helpers[0],
        log=logger(lambda line, lines: None, journal=False),
    )
    await asyncio.sleep(0)  # the kernel's turn
    own = asyncio.all_tasks()
    for _ in range(looks):
        witness.look(frozenset({11, 12}), 10)
    for death in deaths:
        witness.put(death)
    await asyncio.gather(*(asyncio.all_tasks() - own))
    await witness.close()
    return events


def told(counter: Counter, *deaths: Event, helpers: tuple[int, ...] = (0,), **more: Any) -> list[object]:
    """The same, a fault by its reason."""
    events = asyncio.run(asyncio.wait_for(heard(counter, *deaths, helpers=list(helpers), **more), 60))
    return [event.cause.reason if isinstance(event, Faulted) else event for event in events]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_supervisor.daemon.witness.WHOSE_S", 0.02)


@pytest.mark.parametrize(
    ("readings", "looks"),
    [
        ((0, 1), 0),
        ((3, 3, 4), 1),
        # A look that fails, also several times and at the moment of the death, must not hide the growth.
        ((0, None, 1), 1),
        ((0, 0, None, None, 1), 3),
    ],
    ids=["at the death", "after a look", "after a failed look", "after failed looks"],
)
@pytest.mark.parametrize("deaths", [(WORKER,), (KILLED,), (CRASHED,), (WORKER, KILLED)], ids=str)
def test_the_kill_is_told_before_the_death(readings, looks, deaths):
    assert told(Counter(*readings), *deaths, looks=looks) == ["host-out-of-memory", *deaths]


def test_a_kill_that_a_look_sees_needs_no_death():
    assert told(Counter(0, None, 1), looks=2) == ["host-out-of-memory"]


@pytest.mark.parametrize("readings", [(2,), (None,), (0, None), (None, 5, 5)], ids=str)
def test_a_death_without_a_new_kill_is_a_death(readings):
    assert told(Counter(*readings), WORKER, KILLED, looks=2) == [WORKER, KILLED]


def test_a_kill_while_no_engine_lives_is_no_fault():
    assert told(Counter(0, 1), looks=1, alive=False) == []


@pytest.mark.parametrize(
    ("readings", "looks", "helpers"),
    [
        ((0, 1), 1, (1,)),
        ((0, 0, 1), 2, (0, 1)),
        ((0, 0, None, 2), 3, (0, 2)),
        # One after the other, before the first is judged.
        ((0, 1, 2), 2, (2,)),
    ],
    ids=str,
)
def test_the_helper_that_the_kernel_takes_first_does_not_end_the_engine(readings, looks, helpers):
    assert told(Counter(*readings), looks=looks, helpers=helpers) == []
    # A death at that moment is the engine's.
    both = told(Counter(*readings), WORKER, looks=looks, helpers=helpers)
    assert both == ["host-out-of-memory", WORKER]


@pytest.mark.parametrize(
    ("readings", "looks", "helpers"),
    [
        # Two were killed, and one of them was a helper.
        ((0, 2), 1, (1,)),
        # A person killed the helper before: it explains no kill of the kernel's.
        ((0, 0, 1), 2, (1, 1)),
    ],
    ids=str,
)
def test_a_helper_explains_no_other_kill(readings, looks, helpers):
    assert told(Counter(*readings), looks=looks, helpers=helpers) == ["host-out-of-memory"]


@pytest.mark.parametrize(("pid", "expected"), [(77, []), (12, ["host-out-of-memory"])], ids=["a helper", "a worker"])
def test_the_kernels_line_names_the_process(pid, expected):
    line = f"oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg={Counter.cgroup},task=python3,pid={pid},uid=990"
    assert told(Counter(None), lines=(line,)) == expected
