"""An OOM kill that the cgroup counts is told before the death that it caused, in whatever way both are seen."""

from __future__ import annotations

import asyncio

import pytest

from vllm_supervisor.adapters.log import logger
from vllm_supervisor.core.events import EngineExited, Faulted, ProcessDied, Role
from vllm_supervisor.daemon.witness import Witness

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
    """A kernel whose lines nobody may read."""

    pid = None

    async def run(self) -> None:
        await asyncio.Event().wait()


def told(counter: Counter, *deaths: ProcessDied | EngineExited, looks: int = 0, alive: bool = True) -> list[object]:
    """What the loop gets, after some looks and then those deaths."""

    async def tell() -> list[object]:
        events: list[object] = []
        witness = Witness(
            events.append,
            kernel=lambda _: Kernel(),  # type: ignore[arg-type, return-value]
            counter=counter,  # type: ignore[arg-type]
            gpu_table=lambda: None,
            machine_gpus=lambda: 0,
            alive=lambda: alive,
            log=logger(lambda line, lines: None, journal=False),
        )
        for _ in range(looks):
            witness.look(frozenset({11, 12}), 10)
        for death in deaths:
            witness.put(death)
        await witness.close()
        return [event.cause.reason if isinstance(event, Faulted) else event for event in events]

    return asyncio.run(tell())


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
