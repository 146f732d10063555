"""Time in which the supervisor itself did not run counts against nobody."""

from __future__ import annotations

import pytest

from pure.start import reach
from vllm_supervisor.core.events import Activity, StoodStill, Tick
from vllm_supervisor.core.phases import LOADING, Phase

LONG = 3000.0


@pytest.mark.parametrize("phase", sorted(LOADING - {Phase.VERIFYING}))
def test_a_load_is_not_called_stalled_for_the_time_that_was_lost(phase):
    lost = reach(phase)
    lost.do(StoodStill(LONG), after=LONG)
    lost.do(Tick())
    assert lost.phase is phase
    assert "stood still for 3000.0 s" in lost.logged()
    # The same gap, seen with open eyes, is a stall.
    stalled = reach(phase)
    stalled.do(Tick(), after=LONG)
    assert stalled.phase is Phase.STOPPING


def test_a_canary_that_was_under_way_gets_its_whole_time():
    lost = reach("ready(asked)")
    lost.do(StoodStill(LONG), after=LONG)
    lost.do(Tick())
    assert lost.phase is Phase.READY
    hung = reach("ready(asked)")
    hung.do(Tick(), after=LONG)
    assert hung.phase is Phase.STOPPING


def test_the_cpu_time_of_a_standstill_is_no_proof_of_life():
    start = reach("ready(asked)")
    start.do(Activity(worker_cpu_s=10.0))
    start.do(StoodStill(LONG), after=LONG)
    proof = start.state.life.proof_at
    start.do(Activity(worker_cpu_s=10.0 + LONG))
    assert start.state.life.proof_at == proof


def test_the_check_gets_its_whole_time():
    start = reach("preflight")
    start.do(StoodStill(LONG), after=LONG)
    start.do(Tick())
    assert start.phase is Phase.PREFLIGHT
