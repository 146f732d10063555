"""Whether the start that runs is slower than those before it: a word for STATUS and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .overview import SLOW_RATIO, slower
from .phases import LOADING
from .retry import SUCCESSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .retry import PastStart
    from .state import State

LEAST_S: Final = 10.0
"""Seconds that a start must lose before anybody is told: a start of a second is not slow at two."""


def compared(past: Sequence[PastStart], config_hash: str) -> int:
    """How many successful starts the expected lengths come from, as `retry.usual_phases` takes them."""
    ready = [start for start in past if start.ready_at is not None]
    same = [start for start in ready if start.config_hash == config_hash]
    return min(len(same or ready), SUCCESSES)


def slow_start(state: State, now: float, others: int) -> str:
    """`this start takes 2.3 times as long as the last five, most of it in capturing-graphs (…)`, or empty.

    Args:
        state: The start; phases that are still to come do not count for it.
        now: Monotonic seconds.
        others: How many starts the policy's expectation comes from; 0 when there is none.
    """
    if others < 1:
        return ""
    loading = {phase.value for phase in LOADING}
    spent: dict[str, float] = {
        phase.value: s for phase, s in state.phase_seconds(now).items() if phase.value in loading
    }
    usual: dict[str, float] = {phase.value: seconds for phase, seconds in state.policy.expected.items()}
    took, expected = sum(spent.values()), sum(usual.get(name, 0.0) for name in spent)
    if expected <= 0 or took <= expected * SLOW_RATIO or took - expected < LEAST_S:
        return ""
    said = slower(spent, usual, others)
    return f"this start takes {said}" if said else ""
