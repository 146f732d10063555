"""The one decision function: `step(state, event, now) -> (state, effects)`.

Pure and total: every phase answers every event. Nothing is awaited inside a transition; whatever
takes time is a phase or a step with a deadline, and its end is an event.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from . import ending, gates, loading, nodes, serving, standstill, turns
from .causes import Cause
from .effects import Effect, Exit, Log, NotifyExtend, NotifyStopping, NotifyWatchdog, Preflight
from .events import (
    Begin,
    EngineExited,
    Event,
    Faulted,
    IncidentSaved,
    Launched,
    LaunchFailed,
    Output,
    Peers,
    PreflightDone,
    Probed,
    ProcessDied,
    ReloadRequested,
    SmokeDone,
    StoodStill,
    StopRequested,
    Swept,
    Tick,
    Turn,
)
from .exits import ExitCode
from .phases import BEFORE_ENGINE, LOADING, SERVING, SETTLED, Phase
from .policy import EXTEND_EVERY_S, EXTEND_MARGIN_S
from .sightings import Activity, CanaryDone, Counted
from .state import State

PREFLIGHT_LIMIT_S = 60.0
"""The check takes under two seconds; a file system that hangs must not hold the start for ever."""

Result = tuple[State, tuple[Effect, ...]]


def step(state: State, event: Event, now: float) -> Result:
    """What follows from `event` at `now`.

    Args:
        state: The present state.
        event: What happened.
        now: Monotonic seconds, never less than in the call before.

    Returns:
        The next state and the effects to carry out, in order.
    """
    if state.phase in SETTLED:
        return state, ()
    state, effects = _dispatch(state, event, now)
    return _tell_systemd(state, effects, now)


def _dispatch(state: State, event: Event, now: float) -> Result:
    match event:
        case Begin():
            return _begin(state, now)
        case Tick():
            return _tick(state, now)
        case PreflightDone():
            return _preflight_done(state, event, now)
        case Turn():
            return turns.turn(state, event, now)
        case Peers():
            return nodes.peers(state, event, now)
        case Launched():
            return loading.launched(state, event, now)
        case LaunchFailed():
            awaited = state.phase is Phase.LAUNCHING and state.engine_pid is None
            return ending.fail(state, event.cause, now) if awaited else (state, ())
        case Output():
            return loading.output(state, event, now)
        case Activity():
            return (
                serving.activity(state, event, now) if state.phase in SERVING else loading.activity(state, event, now)
            )
        case Probed():
            return gates.probed(state, event, now)
        case ProcessDied():
            return loading.process_died(state, event, now)
        case EngineExited():
            return ending.engine_exited(state, event, now)
        case Faulted():
            return ending.fail(state, event.cause, now)
        case StopRequested():
            return _stop(state, event, now)
        case ReloadRequested():
            return serving.reload(state)
        case Counted():
            return serving.counted(state, event, now)
        case CanaryDone():
            return serving.canary_done(state, event, now)
        case SmokeDone():
            return serving.smoke_done(state, event, now)
        case IncidentSaved():
            return nodes.once_fate_is_known(state, ending.incident_saved(state, now), now)
        case Swept():
            return nodes.once_fate_is_known(state, ending.swept(state, event, now), now)
        case StoodStill():
            return standstill.stood_still(state, event, now)
        case _:
            assert_never(event)


def _begin(state: State, now: float) -> Result:
    if state.timeline:
        return state, ()
    policy = state.policy
    if policy.wait_s > 0:
        state = state.enter(Phase.WAITING, now, now + policy.wait_s)
        why = f"waiting {policy.wait_s:.0f} s before attempt {policy.attempt} of {policy.max_attempts}"
        # The one announced pause: systemd is told at once for how long.
        until = now + policy.wait_s + policy.systemd_start_timeout_s
        state = replace(state, evidence=replace(state.evidence, extended_at=now, timeout_at=until))
        return state, (
            NotifyExtend(policy.wait_s + policy.systemd_start_timeout_s),
            Log("warning", f"{why}; the last one failed: {policy.last_reason}"),
        )
    return _preflight(state, now)


def _preflight(state: State, now: float) -> Result:
    state = state.saw(now, "the check began").enter(Phase.PREFLIGHT, now, now + PREFLIGHT_LIMIT_S)
    return state, (Preflight(),)


def _check_hangs(state: State) -> Cause:
    return Cause(
        "load-stalled",
        summary=f"the check did not end within {PREFLIGHT_LIMIT_S:.0f} s",
        advice="A file system or the GPU driver does not answer; try `ls` on the model and `nvidia-smi`.",
        phase=state.phase,
    )


def _preflight_done(state: State, event: PreflightDone, now: float) -> Result:
    if state.phase is not Phase.PREFLIGHT:
        return state, ()
    state = replace(state, warnings=event.warnings)
    notes = tuple(Log("warning", text) for text in event.warnings)
    if event.refusal is not None:
        failed, effects = ending.fail(state, event.refusal, now)
        return failed, (*notes, *effects)
    if event.ahead:
        return turns.wait(state, event.ahead, now, notes)
    # The check's own time is no gap of launching, whose budget is learnt from gaps.
    return nodes.gather(state.saw(now, "the check passed"), now, notes)


def _stop(state: State, event: StopRequested, now: float) -> Result:
    if state.phase in BEFORE_ENGINE:
        state = replace(state, stop_by=event.by).enter(Phase.STOPPED, now)
        return state, (NotifyStopping(), Exit(ExitCode.OK, "stopped", "stopped before the engine was started"))
    return ending.stop_requested(state, event, now)


def _tick(state: State, now: float) -> Result:
    due = state.deadline is not None and now >= state.deadline
    if state.phase is Phase.WAITING and state.ahead:
        return turns.waited_enough(state, now) if due else (state, ())
    if state.phase is Phase.WAITING:
        return _preflight(state, now) if due else (state, ())
    if state.phase is Phase.PREFLIGHT:
        return ending.fail(state, _check_hangs(state), now) if due else (state, ())
    if state.phase in LOADING:
        return loading.tick(state, now)
    if state.phase is Phase.READY:
        return serving.tick(state, now)
    return nodes.once_fate_is_known(state, ending.tick(state, now), now)


def _tell_systemd(state: State, effects: tuple[Effect, ...], now: float) -> Result:
    """Extend the start on evidence and feed the watchdog; both follow from the state alone.

    The start is extended when the last piece of evidence allows more than systemd was told, so that
    our own verdict comes a minute before systemd's, whatever the pattern of evidence.
    """
    if state.phase in SETTLED:
        return state, effects
    evidence = state.evidence
    if state.phase in LOADING and now - evidence.extended_at >= EXTEND_EVERY_S:
        seconds = loading.budget_of(state) + EXTEND_MARGIN_S
        if evidence.at + seconds > evidence.timeout_at:
            state = replace(state, evidence=replace(evidence, extended_at=now, timeout_at=now + seconds))
            effects = (*effects, NotifyExtend(seconds))
    period = state.policy.watchdog_s
    if state.ready_at is not None and period is not None and now - state.watchdog_at >= period / 3.0:
        state = replace(state, watchdog_at=now)
        effects = (*effects, NotifyWatchdog())
    return state, effects


def next_wake(state: State, now: float) -> float:
    """When the loop must produce a Tick at the latest, in monotonic seconds."""
    times = [now + 1.0]
    if state.deadline is not None:
        times.append(state.deadline)
    if gates.wants_probe(state):
        times.append(state.gates.probe_due)
    return max(min(times), now)
