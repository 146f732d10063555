"""Decisions of a start that several nodes share: it begins with all of them, and it has one fate.

What the nodes say to each other is decided in `cluster`; here is what follows for this node's start.
"""

from __future__ import annotations

from dataclasses import replace

from . import ending, gates, serving
from .effects import AwaitNodes, Effect, Exit, Launch, Log, NotifyExtend
from .events import Peers
from .phases import LOADING, Phase
from .policy import EXTEND_EVERY_S
from .state import State, StopStep
from .words import duration

Result = tuple[State, tuple[Effect, ...]]

FATE_S = 5.0
"""A node that failed waits for the common cause for so long at most, so that all nodes give the same one; seconds."""

LOOK_AGAIN_S = 0.5


def gather(state: State, now: float, notes: tuple[Effect, ...]) -> Result:
    """The check passed: launch the engine, in a cluster once all nodes have come this far."""
    nnodes = state.policy.nnodes
    if nnodes == 1:
        return state.enter(Phase.LAUNCHING, now), (*notes, Launch())
    state = replace(state.enter(Phase.WAITING, now), ahead="the other nodes", gathering=True)
    state, effects = announce(state, now)
    return state, (*notes, Log("info", f"waiting for the other nodes ({nnodes} in all)"), *effects, AwaitNodes())


def announce(state: State, now: float) -> Result:
    """Tell systemd to wait on, as long as the others are looked for; never when nobody looks any more."""
    evidence = state.evidence
    if now - evidence.extended_at < EXTEND_EVERY_S:
        return state, ()
    seconds = state.policy.systemd_start_timeout_s
    return replace(state, evidence=replace(evidence, extended_at=now, timeout_at=now + seconds)), (
        NotifyExtend(seconds),
    )


def peers(state: State, event: Peers, now: float) -> Result:
    """There is news of the other nodes."""
    state = replace(state, peers=event)
    if event.fate is not None:
        return _fate(state, event, now)
    if state.gathering and state.phase is Phase.WAITING:
        if event.admitted:
            return _launch(state, now)
        return announce(replace(state, ahead=event.missing or state.ahead), now)
    if state.phase not in LOADING or state.dying is not None:
        return state, ()
    if state.policy.node_rank == 0:
        return gates.maybe_ready(state, now)
    # A node without a port judges nothing by itself: while the head is heard, the head's verdict counts.
    state = state.saw(now, "the head goes on")
    return serving.become_ready(state, now) if event.up and state.engine_alive else (state, ())


def _launch(state: State, now: float) -> Result:
    note = Log("info", f"all {state.policy.nnodes} nodes are there and agree, after {duration(now - state.since)}")
    state = replace(state.saw(now, "all nodes are there"), ahead="", gathering=False).enter(Phase.LAUNCHING, now)
    return state, (note, Launch())


def _fate(state: State, event: Peers, now: float) -> Result:
    """All nodes end, and for the same cause; what was asked for stays the outcome here."""
    assert event.fate is not None  # noqa: S101 - the caller looked
    if state.stop_by and state.phase is not Phase.DRAINING:
        return state, ()
    if state.fault is not None:
        return replace(state, fault=replace(event.fate, phase=event.fate.phase or state.fault.phase)), ()
    return ending.fail(state, event.fate, now)


def once_fate_is_known(before: State, result: Result, now: float) -> Result:
    """The end of a start, but not before the common cause is known, when others share it."""
    after, effects = result
    shared = before.peers.admitted and before.peers.fate is None and before.fault is not None
    if after.phase is not Phase.FAILED or not shared or now - before.since >= FATE_S:
        return result
    kept = tuple(effect for effect in effects if not isinstance(effect, Exit))
    return replace(before, stop_step=StopStep.INCIDENT, deadline=now + LOOK_AGAIN_S, survivors=()), kept
