"""Decisions about whose turn it is to load, when the memory of the machine cannot cache two checkpoints at once.

The wait is announced and has an end: another instance that never finishes keeps nobody down.
"""

from __future__ import annotations

from dataclasses import replace

from .effects import AwaitTurn, Effect, Launch, Log, NotifyExtend
from .events import Turn
from .phases import Phase
from .policy import EXTEND_EVERY_S
from .state import State
from .words import duration

Result = tuple[State, tuple[Effect, ...]]


def wait(state: State, ahead: str, now: float, notes: tuple[Effect, ...]) -> Result:
    """The check passed, and another instance loads first."""
    state = state.saw(now, "the check passed").enter(Phase.WAITING, now, now + state.policy.load_wait_s)
    longest = duration(state.policy.load_wait_s)
    note = Log("info", f"waiting for {ahead}, for {longest} at most: memory cannot cache both checkpoints")
    state, effects = _announce(replace(state, ahead=ahead), now)
    return state, (*notes, note, *effects, AwaitTurn())


def turn(state: State, event: Turn, now: float) -> Result:
    """The others were looked at again; outside of this wait it is of no interest any more."""
    if state.phase is not Phase.WAITING or not state.ahead:
        return state, ()
    if not event.ahead:
        return _launch(state, now, Log("info", f"its turn to load, after {duration(now - state.since)}"))
    state, effects = _announce(replace(state, ahead=event.ahead), now)
    return state, (*effects, AwaitTurn())


def waited_enough(state: State, now: float) -> Result:
    """The wait is over although another instance still loads: both load, which is slow and no fault."""
    note = f"waited {duration(now - state.since)} for {state.ahead}; loading beside it now"
    return _launch(state, now, Log("warning", note))


def _launch(state: State, now: float, note: Log) -> Result:
    state = replace(state.saw(now, "its turn to load came"), ahead="").enter(Phase.LAUNCHING, now)
    return state, (note, Launch())


def _announce(state: State, now: float) -> Result:
    """Tell systemd to wait on, as long as the others are seen to be there; never when nobody looks any more."""
    evidence = state.evidence
    if now - evidence.extended_at < EXTEND_EVERY_S:
        return state, ()
    seconds = state.policy.systemd_start_timeout_s
    return replace(state, evidence=replace(evidence, extended_at=now, timeout_at=now + seconds)), (
        NotifyExtend(seconds),
    )
