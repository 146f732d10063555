"""Decisions after READY: liveness, canaries, the smoke test, a reload."""

from __future__ import annotations

from dataclasses import replace

from . import ending, gates, liveness, loading
from .causes import Cause
from .effects import Canary, Effect, Log, NotifyReady, ReadCounters, RecordReady, Reload, SaveIncident, Smoke
from .events import Activity, CanaryDone, Counted, SmokeDone
from .phases import LOADING, SERVING, Phase
from .smoke import SLOW
from .state import State
from .words import duration

Result = tuple[State, tuple[Effect, ...]]

SERVING_LOG = "serving"
"""The phase that the scanner gives to everything after HTTP is up."""

HUNG_ADVICE = "The engine is restarted; stacks and GPU state are kept in the incident."


def become_ready(state: State, now: float) -> Result:
    """All gates are open: tell systemd, the history and the operator."""
    life = liveness.Life(proof_at=now, canary_last=now)
    # What the log complained about did not stop the start, so it is not why a later end comes.
    # What the load complained of did not keep it from getting ready; what came after HTTP was up may yet end it.
    suspect = state.suspect if state.suspect is not None and state.suspect.phase == SERVING_LOG else None
    state = replace(state.enter(Phase.READY, now), ready_at=now, life=life, watchdog_at=now, suspect=suspect)
    took = duration(now - state.started)
    effects: list[Effect] = [NotifyReady(), RecordReady(), ReadCounters(), Log("info", f"ready after {took}")]
    if state.policy.smoke == "report":
        effects.append(Smoke())
    return state, tuple(effects)


def counted(state: State, event: Counted, now: float) -> Result:
    """The engine's counters were read."""
    if state.life is None or state.phase not in SERVING:
        return state, ()
    before = state.life.counted
    state = replace(state, life=liveness.on_counted(state.life, event, now))
    if state.phase is Phase.DRAINING:
        return ending.drained(state, before, event, now)
    return state, ()


def activity(state: State, event: Activity, now: float) -> Result:
    """A sample of the engine's processes and GPUs came in."""
    life = state.life or liveness.Life(proof_at=now)
    return replace(state, activity=event, life=liveness.on_activity(life, event, state.policy, now)), ()


def canary_done(state: State, event: CanaryDone, now: float) -> Result:
    """The canary was answered, or it failed."""
    if state.life is None or state.phase not in SERVING:
        return state, ()  # an engine that is being ended owes no answer
    was_hung = state.life.hung
    state = replace(state, life=liveness.on_canary(state.life, event, now))
    if was_hung and event.answered:
        return state, (Log("warning", f"the engine answers again after {event.seconds:.1f} s"),)
    if not event.answered:
        return state, (Log("warning", f"a one-token request failed: {event.detail}"),)
    return state, ()


def smoke_done(state: State, event: SmokeDone, now: float) -> Result:
    """The question with a known answer was asked."""
    if state.phase not in LOADING | SERVING:
        return state, ()
    state = replace(state, smoke_test=event)
    pace = f"; {event.beside}" if event.beside else ""
    note = Log(
        "error" if not event.passed else "warning" if event.kind == SLOW else "info",
        f"smoke test: {event.verdict} ({event.seconds:.1f} s){pace}",
    )
    if state.phase in LOADING and state.policy.smoke == "require":
        if event.passed:
            after, effects = gates.smoke_passed(state, now)
            return after, (note, *effects)
        advice = "Look at the answer in the incident: a model without its tokenizer starts and answers nonsense."
        cause = Cause("smoke-failed", summary=event.verdict, advice=advice, phase=state.phase)
        after, effects = ending.fail(state, cause, now)
        return after, (note, *effects)
    return state, (note,)


def reload(state: State) -> Result:
    """A reload was asked for: only a ready engine can be carried over."""
    if state.phase is Phase.READY:
        return state, (Reload(),)
    return state, (Log("warning", f"reload refused: the engine is {state.phase}, not ready"),)


def tick(state: State, now: float) -> Result:
    """Time passed while the engine serves."""
    if state.dying is not None:
        return loading.last_words(state, state.dying, now)
    life = state.life or liveness.Life(proof_at=now)
    hung = liveness.hang(life, state.policy, now)
    if hung is not None:
        cause = Cause("engine-hung", summary=hung, advice=HUNG_ADVICE, phase=state.phase)
        if state.policy.liveness == "restart":
            return ending.fail(state, cause, now, stacks=True)
        return replace(state, life=replace(life, hung=True)), (Log("error", cause.sentence()), SaveIncident(cause))
    if liveness.wants_canary(life, state.policy, now):
        return replace(state, life=liveness.on_sent(life, now)), (Canary(),)
    return state, ()
