"""Decisions after READY: liveness, canaries, the smoke test, a reload."""

from __future__ import annotations

from dataclasses import replace

from . import ending, gates, liveness, loading, several
from .causes import Cause
from .effects import Canary, Effect, Log, NotifyReady, ReadCounters, RecordReady, Reload, SaveIncident, Smoke
from .events import SmokeDone
from .liveness import Life
from .phases import LOADING, SERVING, Phase
from .sightings import Activity, CanaryDone, Counted
from .smoke import SLOW
from .state import State
from .words import duration

Result = tuple[State, tuple[Effect, ...]]

SERVING_LOG = "serving"
"""The phase that the scanner gives to everything after HTTP is up."""

RESTARTED = "The engine is restarted; stacks and GPU state are kept in the incident."
ALL_RESTARTED = "All engines are restarted, one alone cannot be; stacks and GPU state are kept in the incident."
LEFT = 'It is left as it is (liveness.mode = "report"); GPU state is kept in the incident.'


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
    engines = several.on_counted(state.engines, event, now)
    state, notes = _fares(state, liveness.on_counted(state.life, event, now), engines)
    if state.phase is Phase.DRAINING:
        return ending.drained(state, before, event, now)
    return state, notes


def _fares(state: State, life: Life, engines: several.Lives) -> Result:
    """The state with what is known now; says which of several engines works again that was called hung."""
    if engines:
        life = replace(life, hung=any(one.hung for one in engines.values()))
    again = [label for label, one in state.engines.items() if one.hung and label in engines and not engines[label].hung]
    notes = (Log("warning", f"{several.name(engines, again)} works again"),) if again else ()
    return replace(state, life=life, engines=engines), notes


def activity(state: State, event: Activity, now: float) -> Result:
    """A sample of the engine's processes and GPUs came in."""
    life = state.life or liveness.Life(proof_at=now)
    engines = several.on_activity(state.engines, event, state.policy, now)
    state = replace(state, activity=event)
    return _fares(state, liveness.on_activity(life, event, state.policy, now), engines)


def canary_done(state: State, event: CanaryDone, now: float) -> Result:
    """The canary was answered, or it failed."""
    if state.life is None or state.phase not in SERVING:
        return state, ()  # an engine that is being ended owes no answer
    was_hung = state.life.hung
    engines = several.on_canary(state.engines, event, now)
    state, notes = _fares(state, liveness.on_canary(state.life, event, now), engines)
    if engines and event.answered:
        return state, notes
    if was_hung and event.answered:
        return state, (Log("warning", f"the engine answers again after {event.seconds:.1f} s"),)
    if not event.answered:
        whom = f" to {several.name(engines, [event.engine])}" if event.engine in engines else ""
        return state, (Log("warning", f"a one-token request{whom} failed: {event.detail}"),)
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
    if state.engines:
        return _tick_of_several(state, life, now)
    hung = liveness.hang(life, state.policy, now)
    if hung is not None:
        cause = _hang(state, hung, RESTARTED)
        if state.policy.liveness == "restart":
            return ending.fail(state, cause, now, stacks=True)
        return replace(state, life=replace(life, hung=True)), (Log("error", cause.sentence()), SaveIncident(cause))
    if liveness.wants_canary(life, state.policy, now):
        return replace(state, life=liveness.on_sent(life, now)), (Canary(),)
    return state, ()


def _hang(state: State, summary: str, restarted: str) -> Cause:
    advice = restarted if state.policy.liveness == "restart" else LEFT
    return Cause("engine-hung", summary=summary, advice=advice, phase=state.phase)


def _tick_of_several(state: State, life: Life, now: float) -> Result:
    """Each engine is judged and asked by itself, whatever the others do."""
    engines, effects = state.engines, list[Effect]()
    found = several.hangs(engines, state.policy, now)
    if found:
        summary = several.verdict(engines, found, now)
        cause = _hang(state, summary, ALL_RESTARTED)
        if state.policy.liveness == "restart":
            return ending.fail(state, cause, now, stacks=True)
        life, engines = replace(life, hung=True), several.with_hung(engines, found)
        effects += [Log("error", cause.sentence()), SaveIncident(cause)]
    labels = several.to_ask(engines, state.policy, now)
    if labels:
        life, engines = liveness.on_sent(life, now), several.asked(engines, labels, now)
        effects += [Canary(label, several.rank(engines, label)) for label in labels]
    return replace(state, life=life, engines=engines), tuple(effects)
