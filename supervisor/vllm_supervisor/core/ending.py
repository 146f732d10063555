"""Decisions about endings: asked for, forced by a fault, or the engine's own.

One path for all of them, in steps that each have a deadline: grace, drain, SIGTERM, SIGTERM again,
incident, SIGKILL and sweep. The outcome is judged by what was asked for, never by the engine's exit
code: an engine that dies while serving exits 0 (F3.3).
"""

from __future__ import annotations

from dataclasses import replace

from .causes import REASONS, Cause, CauseClass
from .effects import (
    Effect,
    Exit,
    KillEngine,
    Log,
    NotifyExtend,
    NotifyStopping,
    ReadCounters,
    SaveIncident,
    Sweep,
    Terminate,
)
from .events import EngineExited, StopRequested, Swept
from .exits import ExitCode, exit_code
from .idle import alone, idle
from .phases import BEFORE_ENGINE, LOADING, SETTLED, Phase
from .policy import EXTEND_EVERY_S
from .sightings import Counted
from .state import State, StopStep
from .words import size

Result = tuple[State, tuple[Effect, ...]]

TERM_AGAIN_S = 5.0
"""While it loads, vLLM loses the first SIGTERM without a word (F3.2b); the second one works."""
INCIDENT_S = 25.0
"""An incident that takes longer than this is left unfinished."""
SWEEP_S = 30.0
"""So long after SIGKILL a process or GPU memory may take to disappear."""
EXTEND_STOP_S = 60.0
TIMEOUT_SLACK_S = 5.0
"""systemd's clock of the start began before ours, by the time that the interpreter takes to start."""
NO_FAREWELL = "nothing runs and nobody is connected: the engine's own farewell is not waited for"


def verdict(state: State, fallback: Cause) -> Cause:
    """The classifier's cause when it has one, else what we saw ourselves."""
    suspect = state.suspect
    if suspect is None or suspect.reason in {"healthy", "unknown"}:
        return fallback
    if fallback.reason == "load-stalled" and REASONS[suspect.reason] is CauseClass.TRANSIENT:
        return fallback
    return suspect


def fail(state: State, cause: Cause, now: float, *, stacks: bool = False) -> Result:
    """End this start because of `cause`; the first fault counts, and none after a stop was asked for."""
    if state.fault is not None or state.phase in SETTLED:
        return state, ()
    if state.stop_by:
        return _fault_while_stopping(state, cause, now)
    was_serving = state.ready_at is not None
    started = state.engine_pid is not None
    state = replace(state, fault=cause if cause.phase else replace(cause, phase=str(state.phase)), dying=None)
    before_engine = not started and state.phase in BEFORE_ENGINE | {Phase.LAUNCHING}
    state = replace(state.enter(Phase.STOPPING, now, now + INCIDENT_S), stop_step=StopStep.INCIDENT)
    note = Log("error", cause.sentence())
    if before_engine:
        # Nothing was started, so nothing has to be ended.
        return state, (note, SaveIncident(cause))
    told: tuple[Effect, ...] = (NotifyStopping(),) if was_serving else ()
    extend = NotifyExtend(INCIDENT_S + SWEEP_S + EXTEND_STOP_S)
    return state, (note, *told, extend, SaveIncident(cause, stacks=stacks))


def _fault_while_stopping(state: State, cause: Cause, now: float) -> Result:
    """The stop stays the outcome; what still ran in a drain has lost its engine."""
    note = Log("warning", f"while stopping: {cause.sentence()}")
    if state.phase is Phase.DRAINING:
        return _terminate(state, now, (note,))
    return state, (note,)


def engine_exited(state: State, event: EngineExited, now: float) -> Result:
    """The engine's main process is gone."""
    state = replace(state, engine_alive=False, exit_status=event.status)
    if state.phase in LOADING | {Phase.READY}:
        how = f"exit status {event.status}" if event.status >= 0 else f"signal {-event.status}"
        when = "while it was serving" if state.ready_at is not None else f"in {state.phase}"
        advice = "See the engine's last lines in the journal."
        # An engine that ends by itself ends its workers first: only its own words can blame them.
        before = f"{state.dying.summary}; " if state.dying is not None else ""
        seen = Cause("engine-died", summary=f"{before}the engine ended {when} ({how})", advice=advice)
        return fail(state, verdict(state, replace(seen, phase=str(state.phase))), now)
    if state.stop_step is StopStep.INCIDENT:
        return state, ()
    if state.phase in {Phase.DRAINING, Phase.STOPPING} and state.stop_step is not StopStep.SWEEP:
        return _kill(state, now)
    return state, ()


def stop_requested(state: State, event: StopRequested, now: float) -> Result:
    """SIGTERM or SIGINT: the first one ends in order, a second one at once."""
    if state.stop_by or state.fault is not None:
        if state.stop_step in {StopStep.SWEEP, StopStep.NONE}:
            return state, ()
        if not state.stop_by and state.stop_step is StopStep.INCIDENT:
            # The start ends already; what is known of its failure is saved first, within INCIDENT_S.
            return replace(state, stop_by=event.by), (Log("info", f"{event.by}: ending already; saving the incident"),)
        killed, effects = _kill(replace(state, stop_by=state.stop_by or event.by), now)
        return killed, (Log("warning", f"{event.by} again: the engine is killed now"), *effects)
    if state.phase in LOADING and now >= state.evidence.timeout_at - TIMEOUT_SLACK_S:
        cause = Cause(
            "load-stalled",
            summary=f"systemd's start timeout ran out in {state.phase}",
            advice="Raise the budgets in [stall], or TimeoutStartSec.",
            phase=str(state.phase),
        )
        return fail(state, cause, now)
    state = replace(state, stop_by=event.by)
    if state.phase in LOADING:
        return _terminate(state, now, (NotifyStopping(),))
    policy = state.policy
    if policy.grace_s > 0:
        state = replace(state.enter(Phase.DRAINING, now, now + policy.grace_s), stop_step=StopStep.GRACE)
        return state, (Log("info", f"not ready any more; draining begins in {policy.grace_s:.0f} s"),)
    return _drain(state, now)


def _drain(state: State, now: float) -> Result:
    policy = state.policy
    if policy.drain_s <= 0:
        return _terminate(replace(state, stop_step=StopStep.DRAIN), now, (NotifyStopping(),))
    begin: tuple[Effect, ...] = (NotifyStopping(), NotifyExtend(policy.drain_s + EXTEND_STOP_S))
    state = replace(state.enter(Phase.DRAINING, now, now + policy.drain_s), stop_step=StopStep.DRAIN)
    if policy.engine_drains:
        # vLLM finishes what runs and answers new requests with 500 meanwhile (F3.2).
        return replace(state, deadline=now + policy.drain_s + TERM_AGAIN_S), (*begin, Terminate())
    # The last reading may be older than a request that has just begun, so idleness is asked for anew.
    return state, (*begin, ReadCounters())


def drained(state: State, before: Counted | None, event: Counted, now: float) -> Result:
    """Counters while draining: progress extends the stop, an idle engine ends the drain."""
    if state.stop_step is not StopStep.DRAIN:
        return state, ()
    if idle(state, event, now):
        if not state.policy.engine_drains:
            return _terminate(state, now, ())
        if alone(state, now):
            # vLLM 0.32 then waits 3 s to 17 s for its own workers, which it kills at once without --shutdown-timeout.
            killed, effects = _kill(state, now)
            return killed, (Log("info", NO_FAREWELL), *effects)
    evidence = state.evidence
    if before is not None and before != event and now - evidence.extended_at >= EXTEND_EVERY_S:
        left = max((state.deadline or now) - now, 0.0)
        return replace(state, evidence=replace(evidence, extended_at=now)), (NotifyExtend(left + EXTEND_STOP_S),)
    return state, ()


def _terminate(state: State, now: float, before: tuple[Effect, ...]) -> Result:
    """SIGTERM, and what has to be told and done before it."""
    if not state.engine_alive:
        killed, effects = _kill(state, now)
        return killed, (*before, *effects)
    told = _leaving_grace(state)
    deadline = now + min(TERM_AGAIN_S, state.policy.stop_wait_s)
    state = replace(state.enter(Phase.STOPPING, now, deadline), stop_step=StopStep.TERM)
    return state, (*before, *told, NotifyExtend(state.policy.stop_wait_s + EXTEND_STOP_S), Terminate())


def _kill(state: State, now: float) -> Result:
    told = _leaving_grace(state)
    state = replace(state.enter(Phase.STOPPING, now, now + SWEEP_S), stop_step=StopStep.SWEEP)
    return state, (*told, NotifyExtend(SWEEP_S + EXTEND_STOP_S), KillEngine(), Sweep())


def _leaving_grace(state: State) -> tuple[Effect, ...]:
    """During the grace systemd does not know of the stop yet, and an extension would stretch its watchdog."""
    return (NotifyStopping(),) if state.stop_step is StopStep.GRACE else ()


def incident_saved(state: State, now: float) -> Result:
    """The incident lies on disk; the engine can go."""
    if state.stop_step is not StopStep.INCIDENT:
        return state, ()
    if state.engine_pid is None:
        return _finish(state, now)
    return _kill(state, now)


def swept(state: State, event: Swept, now: float) -> Result:
    """A look at what is left."""
    if state.stop_step is not StopStep.SWEEP:
        return state, ()
    left = event.alive or ((f"{size(event.gpu_bytes)} of GPU memory",) if event.gpu_bytes else ())
    state = replace(state, survivors=left)
    if not left:
        return _finish(state, now)
    if state.deadline is not None and now >= state.deadline:
        note = Log("error", f"still there {SWEEP_S:.0f} s after SIGKILL, a reboot is needed: {'; '.join(left)}")
        finished, effects = _finish(state, now)
        return finished, (note, *effects)
    return state, (KillEngine(), Sweep())


def tick(state: State, now: float) -> Result:
    """Time passed while ending."""
    if state.deadline is None or now < state.deadline:
        return state, ()
    match state.stop_step:
        case StopStep.GRACE:
            return _drain(state, now)
        case StopStep.DRAIN:
            if state.policy.engine_drains:
                return _kill(state, now)
            return _terminate(state, now, ())
        case StopStep.TERM:
            wait = state.policy.stop_wait_s - TERM_AGAIN_S
            if wait <= 0:
                return _kill(state, now)
            state = replace(state, stop_step=StopStep.TERM_AGAIN, deadline=now + wait)
            return state, (Terminate(),)
        case StopStep.TERM_AGAIN:
            return _kill(state, now)
        case StopStep.INCIDENT:
            return incident_saved(state, now)
        case StopStep.SWEEP:
            return swept(state, Swept(alive=state.survivors or ("processes that could not be looked for",)), now)
        case StopStep.NONE:
            return state, ()


def _finish(state: State, now: float) -> Result:
    fault = state.fault
    if fault is None:
        return state.enter(Phase.STOPPED, now), (Exit(ExitCode.OK, "stopped", f"stopped on request ({state.stop_by})"),)
    code = exit_code(fault.cause_class)
    policy, sentence = state.policy, fault.sentence()
    if code is ExitCode.TRANSIENT and policy.attempt >= policy.max_attempts:
        code = ExitCode.GAVE_UP
        sentence = f"gave up after attempt {policy.attempt} of {policy.max_attempts}: {sentence}"
    return state.enter(Phase.FAILED, now), (Exit(code, "failed", sentence, fault),)
