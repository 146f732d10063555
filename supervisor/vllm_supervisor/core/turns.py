"""Decisions about whose turn it is to load, when the memory of the machine cannot cache two checkpoints at once.

The wait is announced and has an end: another instance that never finishes keeps nobody down.
"""

from __future__ import annotations

from dataclasses import replace

from . import nodes
from .effects import AwaitTurn, Effect, Log
from .events import Turn
from .phases import Phase
from .state import State
from .words import duration

Result = tuple[State, tuple[Effect, ...]]


def wait(state: State, ahead: str, now: float, notes: tuple[Effect, ...]) -> Result:
    """The check passed, and another instance loads first."""
    state = state.saw(now, "the check passed").enter(Phase.WAITING, now, now + state.policy.load_wait_s)
    longest = duration(state.policy.load_wait_s)
    note = Log("info", f"waiting for {ahead}, for {longest} at most: memory cannot cache both checkpoints")
    state, effects = nodes.announce(replace(state, ahead=ahead), now)
    return state, (*notes, note, *effects, AwaitTurn())


def turn(state: State, event: Turn, now: float) -> Result:
    """The others were looked at again; outside of this wait it is of no interest any more."""
    if state.phase is not Phase.WAITING or not state.ahead or state.gathering:
        return state, ()
    if not event.ahead:
        return _launch(state, now, Log("info", f"its turn to load, after {duration(now - state.since)}"))
    state, effects = nodes.announce(replace(state, ahead=event.ahead), now)
    return state, (*effects, AwaitTurn())


def waited_enough(state: State, now: float) -> Result:
    """The wait is over although another instance still loads: both load, which is slow and no fault."""
    note = f"waited {duration(now - state.since)} for {state.ahead}; loading beside it now"
    return _launch(state, now, Log("warning", note))


def _launch(state: State, now: float, note: Log) -> Result:
    return nodes.gather(replace(state.saw(now, "its turn to load came"), ahead=""), now, (note,))
