"""A start that becomes much slower than those before it says so, and where."""

from dataclasses import replace

import pytest

from pure.start import loading
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.retry import PastStart
from vllm_supervisor.core.slower import compared, slow_start

USUAL = {Phase.LOADING_WEIGHTS: 20.0, Phase.CAPTURING_GRAPHS: 20.0, Phase.VERIFYING: 400.0}


def stand(waited, expected=None):
    start = loading(Phase.CAPTURING_GRAPHS, replace(Policy(), expected=expected if expected is not None else USUAL))
    return start.state, start.now + waited


def test_the_sentence_says_how_much_and_in_which_phase():
    state, now = stand(200.0)
    said = slow_start(state, now, 5)
    assert said.startswith("this start takes ")
    assert "times as long as the last five, most of it in capturing-graphs" in said


@pytest.mark.parametrize(
    ("waited", "others", "expected"),
    [
        (0.0, 5, None),  # as fast as ever: the phases to come do not count
        (200.0, 0, None),  # nothing to compare with
        (200.0, 5, {}),
        (14.0, 5, {Phase.LOADING_WEIGHTS: 6.0, Phase.CAPTURING_GRAPHS: 400.0}),
    ],
)
def test_nothing_is_said_without_reason(waited, others, expected):
    state, now = stand(waited, expected)
    assert slow_start(state, now, others) == ""


def test_seconds_are_not_worth_a_word():
    expected = dict.fromkeys((Phase.LAUNCHING, Phase.CONFIGURING, Phase.CONNECTING, Phase.LOADING_WEIGHTS), 6.0)
    expected |= dict.fromkeys((Phase.COMPILING, Phase.SIZING_KV_CACHE, Phase.CAPTURING_GRAPHS), 0.1)
    state, now = stand(0.1, expected)
    seconds = state.phase_seconds(now)
    usual = {phase: took / 1.6 for phase, took in seconds.items()}
    small = {phase: took / 100 for phase, took in usual.items()}
    slow = replace(state, policy=replace(state.policy, expected=usual))
    assert slow_start(slow, now, 5)
    shrunk = replace(
        slow,
        timeline=tuple((phase, at / 100) for phase, at in slow.timeline),
        policy=replace(slow.policy, expected=small),
    )
    assert slow_start(shrunk, now / 100, 5) == ""


def test_starts_of_the_same_configuration_are_compared_with():
    ready = [PastStart(began_at=float(n), ready_at=n + 1.0, config_hash="ab"[n % 2]) for n in range(14)]
    assert compared(ready, "a") == 5
    assert compared(ready[:3], "b") == 1
    assert compared(ready[:3], "c") == 3
    assert compared([PastStart(began_at=1.0)], "a") == 0
