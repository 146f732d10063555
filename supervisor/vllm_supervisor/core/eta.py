"""How far a start has come and how long it will still take.

With history the answer covers the whole start; without it, only what a progress bar shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .phases import LOADING, ORDER, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .retry import PastStart
    from .state import State


def bar_left(state: State, now: float) -> float | None:
    """Seconds until the present progress bar is full, by its own rate; None before two units.

    The rate is taken since the bar's first sight, so that a slow first unit does not count twice.
    """
    bar = state.progress
    if bar is None or bar.phase is not state.phase:
        return None
    moved = bar.done - state.progress_from
    elapsed = now - state.progress_since
    if moved < 1 or elapsed <= 0:
        return None
    return (bar.total - bar.done) * elapsed / moved


def start_left(state: State, now: float) -> float | None:
    """Seconds until READY by the history of this instance; None without history or outside a load."""
    expected = state.policy.expected
    if not expected or state.phase not in LOADING:
        return None
    here = bar_left(state, now)
    if here is None:
        here = max(expected.get(state.phase, 0.0) - (now - state.since), 0.0)
    place = ORDER.index(state.phase)
    later = sum(expected.get(phase, 0.0) for phase in ORDER[place + 1 :] if phase in LOADING)
    return here + later


def ratio(state: State, now: float) -> float | None:
    """Progress of the whole start, 0 to 1; None where nothing is known.

    By expected time with history, else by the bar of the present phase.
    """
    if state.ready_at is not None:
        return 1.0
    if state.phase not in LOADING:
        return None
    left = start_left(state, now)
    if left is not None:
        elapsed = now - launched_at(state)
        return min(elapsed / (elapsed + left), 1.0) if elapsed + left > 0 else 0.0
    bar = state.progress
    if bar is not None and bar.phase is state.phase:
        return min(bar.done / bar.total, 1.0)
    return None


def launched_at(state: State) -> float:
    """When the engine was launched; the start of everything when it was not yet."""
    for phase, at in state.timeline:
        if phase is Phase.LAUNCHING:
            return at
    return state.started


def last_load(past: Sequence[PastStart]) -> float | None:
    """Seconds from launch to READY of the newest start that was ready; None when none was.

    Checks and the pause before a retry are not a part of it: a start that waited for ten minutes has
    loaded no slower.

    Args:
        past: Earlier starts, oldest first.
    """
    for start in reversed(past):
        if start.ready_at is not None and start.phases:
            return sum(seconds for phase, seconds in start.phases.items() if phase in LOADING)
    return None
