"""Whether a draining engine has anything left to do.

What was seen before the drain began says nothing: a request may have come between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sightings import Counted
    from .state import State

LOOKED_AGAIN_S = 1.0
"""So long after the drain began, its connections have been counted anew."""


def idle(state: State, event: Counted, now: float) -> bool:
    """Whether no request runs; without counters, whether no client is connected any more."""
    if event.at is not None and event.at < state.since:
        return False
    if event.running is not None:
        return not event.running and not event.waiting
    return alone(state, now)


def alone(state: State, now: float) -> bool:
    """Whether no client was connected when the connections were last counted."""
    return state.activity.connections == 0 and now - state.since >= LOOKED_AGAIN_S
