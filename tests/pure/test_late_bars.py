"""A bar on stderr that is read after a record on stdout: it moves nothing back, and it is evidence all the same."""

import pytest

from pure.start import loading
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.facts import Progress
from vllm_supervisor.core.phases import LOADING, ORDER, Phase

WITH_BARS = (Phase.LOADING_WEIGHTS, Phase.COMPILING, Phase.CAPTURING_GRAPHS)
PAIRS = [
    (bar, phase)
    for bar in WITH_BARS
    for phase in ORDER
    if phase in LOADING and phase is not Phase.LAUNCHING and ORDER.index(phase) > ORDER.index(bar)
]


@pytest.mark.parametrize(("bar", "phase"), PAIRS)
def test_a_late_bar_leaves_phase_and_progress_as_they_are(bar: Phase, phase: Phase) -> None:
    start = loading(phase)
    before = start.state
    start.do(ev.Output((Progress(bar, 3, 7),)), after=50.0)
    assert start.phase is phase
    assert start.state.progress == before.progress
    assert start.state.timeline == before.timeline
    assert start.state.evidence.at == start.now
    assert (start.state.shards is not None and start.state.shards.done == 3) is (bar is Phase.LOADING_WEIGHTS)


def test_a_bar_of_a_later_phase_is_how_that_phase_begins() -> None:
    assert (
        loading(Phase.CONNECTING).do(ev.Output((Progress(Phase.LOADING_WEIGHTS, 0, 7),))).phase is Phase.LOADING_WEIGHTS
    )
