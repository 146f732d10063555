"""The kernel's account of a kill for memory is the cause of the end, wherever it strikes and however it is seen."""

import pytest

from pure.start import PID, loading, ready
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.phases import LOADING, ORDER, Phase

KILL = ev.Faulted(Cause("host-out-of-memory", summary="the kernel killed 1 of the unit's processes"))
DEATH = ev.ProcessDied(PID + 2, ev.Role.WORKER, "VLLM::Worker_TP1")
ORDERS = {"the kill": (KILL, DEATH), "the death": (DEATH, KILL), "no death": (KILL,)}
STANDS = [*sorted(LOADING - {Phase.LAUNCHING}, key=ORDER.index), Phase.READY]


@pytest.mark.parametrize("stand", STANDS)
@pytest.mark.parametrize("first", ORDERS)
def test_a_kill_for_memory_is_the_cause(stand, first):
    start = ready() if stand is Phase.READY else loading(stand)
    start.do(*ORDERS[first], ev.EngineExited(0), ev.IncidentSaved(), ev.Swept())
    assert (start.exit.code, start.exit.cause.reason, start.exit.cause.phase) == (75, "host-out-of-memory", str(stand))
