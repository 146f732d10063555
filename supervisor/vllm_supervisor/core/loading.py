"""Decisions while the engine loads: phases, evidence, deaths, stalls."""

from __future__ import annotations

from dataclasses import replace

from . import ending, gates
from .causes import Cause
from .effects import Effect, KillEngine, Log
from .events import Launched, Output, ProcessDied, Role
from .facts import CauseFound, Figure, PhaseSeen, Progress, StartupComplete
from .phases import DEFAULT_BUDGETS, LOADING, ORDER, SERVING, Phase
from .sightings import Activity
from .state import State
from .words import duration

Result = tuple[State, tuple[Effect, ...]]

LAST_WORDS_S = 2.0
"""After a process of the engine died, so long its output may still name the cause."""


def budget_of(state: State) -> float:
    """The stall budget of the present phase, in seconds."""
    return state.policy.budgets.get(state.phase, DEFAULT_BUDGETS.get(state.phase, 120.0))


def launched(state: State, event: Launched, now: float) -> Result:
    """The engine's main process exists."""
    if state.engine_pid is not None or state.phase not in LOADING | {Phase.STOPPING}:
        return state, ()
    state = replace(state, engine_pid=event.pid, engine_alive=True)
    if state.phase is Phase.STOPPING:
        # The end came while it was being started: it is ours and must go.
        return state, (KillEngine(),)
    state = replace(state, gates=replace(state.gates, probe_due=now + gates.HEALTH_EVERY_S))
    return state.saw(now, "the engine's process started"), ()


def output(state: State, event: Output, now: float) -> Result:
    """The engine printed something that means something.

    A death can be seen before what was printed earlier is read: phases go on, so that the verdict
    names the right one, but the time of the last words stays, and nothing becomes ready any more.
    """
    effects: list[Effect] = []
    for fact in event.facts:
        match fact:
            case CauseFound():
                state = replace(state, suspect=fact.cause)
            case Figure():
                state = replace(state, figures={**state.figures, fact.name: fact.value})
                if state.phase in LOADING:
                    state = state.saw(now, f"the log gives {fact.name}")
            case PhaseSeen():
                state = _phase_seen(state, fact.phase, now)
            case Progress():
                state = _progressed(state, fact, now)
            case StartupComplete():
                state, more = gates.line_seen(state, now)
                effects.extend(more)
    return state, tuple(effects)


def _phase_seen(state: State, phase: Phase, now: float) -> State:
    if state.phase not in LOADING or phase not in LOADING:
        return state
    if state.phase is not Phase.VERIFYING:
        state = state.saw(now, f"the log reached {phase}").enter(phase, now, state.deadline)
    return state.saw(now, f"the log reached {phase}")


def _progressed(state: State, fact: Progress, now: float) -> State:
    """A bar moved. It is printed on stderr, so it may be read after a record on stdout that ended its phase."""
    if state.phase in LOADING and ORDER.index(fact.phase) < ORDER.index(state.phase):
        state = state.saw(now, f"a bar of {fact.phase} moved")
        return replace(state, shards=fact) if fact.phase is Phase.LOADING_WEIGHTS else state
    state = _phase_seen(state, fact.phase, now)
    if fact.phase is Phase.LOADING_WEIGHTS:
        state = replace(state, shards=fact)
    before = state.progress
    if before is None or before.bar != fact.bar or fact.done < before.done:
        return replace(state, progress=fact, progress_since=now, progress_from=fact.done)
    return replace(state, progress=fact)


def activity(state: State, event: Activity, now: float) -> Result:
    """A sample of the engine's processes: growth is evidence, standing still is not."""
    if state.phase not in LOADING:
        return state, ()
    high, what = _grown(state.activity, event)
    state = replace(state, activity=high)
    return (state.saw(now, what), ()) if what else (state, ())


_GROWTH = (
    ("read_bytes", 1 << 20, "the engine read from disk"),
    ("gpu_bytes", 16 << 20, "GPU memory grew"),
    ("resident_bytes", 8 << 20, "memory grew"),
    ("cache_files", 1, "the compile cache grew"),
    ("compiler_cpu_s", 0.5, "a compiler works"),
)
"""What counts as evidence when it grows, and by how much at least."""

_RESTARTING = frozenset({"read_bytes", "compiler_cpu_s"})
"""Sums over living processes: they fall when one ends, and what the next one does is progress again."""


def _grown(high: Activity, event: Activity) -> tuple[Activity, str]:
    """The new high-water marks, and what has grown enough to count."""
    what = ""
    marks = high
    for name, least, words in _GROWTH:
        new, old = getattr(event, name), getattr(marks, name)
        if new is None:
            continue
        if old is None or (name in _RESTARTING and new < old):
            marks = replace(marks, **{name: new})
        elif new - old >= least:
            marks = replace(marks, **{name: new})
            what = what or words
    carried = ("worker_cpu_s", "gpu_power_watts", "gpu_power_limit_watts", "gpu_utilization", "connections")
    return replace(marks, **{name: getattr(event, name) for name in carried}), what


def process_died(state: State, event: ProcessDied, now: float) -> Result:
    """A process of the engine is gone; for a worker or the engine core that is the end of the start."""
    if event.role not in {Role.WORKER, Role.ENGINE_CORE, Role.API_SERVER}:
        return state, ()
    if state.dying is not None and (event.role is not Role.ENGINE_CORE or state.dying.reason != "worker-killed"):
        return state, ()
    if state.phase not in LOADING | SERVING or state.phase is Phase.DRAINING:
        return state, ()
    reason = "worker-killed" if event.role is Role.WORKER else "engine-died"
    name = event.name or event.role
    cause = Cause(
        reason,
        summary=f"{name} (pid {event.pid}) is gone",
        advice="Look in the kernel log for a kill or crash at that second (`journalctl -k`).",
        phase=state.phase,
    )
    note = Log("error", f"{name} (pid {event.pid}) died")
    if state.dying is not None:
        # A core that is killed takes its workers along, and they may be gone before it is; a core
        # that outlives a worker says so, and then its word decides.
        return replace(state, dying=cause), (note,)
    return replace(state, dying=cause, deadline=now + LAST_WORDS_S), (note,)


def stalled(state: State, now: float) -> Cause:
    """The cause of a phase whose budget ran out, with what still moved and at which power."""
    quiet = duration(now - state.evidence.at)
    if state.gates.smoke_asked:
        advice = "Look at the engine's log and GPUs; smoke.timeout_s and stall.verifying say how long it may take."
        summary = f"the smoke question was not answered for {quiet}"
        return Cause("smoke-failed", summary=summary, phase=state.phase, advice=advice)
    if state.gates.line_at is not None:
        detail = state.gates.detail or "no answer"
        summary = f"the readiness line was printed, but no request was answered for {quiet}: {detail}"
        return Cause("not-answering", summary=summary, phase=state.phase, advice="Look at the engine's log and GPUs.")
    seen = state.activity
    words = [f"no progress in {state.phase} for {quiet} (last: {state.evidence.what or 'nothing'})"]
    if seen.gpu_utilization is not None and seen.gpu_power_watts is not None:
        words.append(f"GPU utilisation {seen.gpu_utilization:.0%} at {seen.gpu_power_watts:.0f} W")
    if seen.worker_cpu_s is not None and state.evidence.worker_cpu_s is not None:
        used = max(seen.worker_cpu_s - state.evidence.worker_cpu_s, 0.0)
        words.append(f"every worker used, or waited for, {used:.0f} s of CPU time or more meanwhile")
    advice = "A start that hangs here once is tried again; if it repeats, see the runbook for slow loads."
    return Cause("load-stalled", summary=", ".join(words), phase=state.phase, advice=advice)


def tick(state: State, now: float) -> Result:
    """Time passed while the engine loads."""
    if state.dying is not None:
        return last_words(state, state.dying, now)
    quiet = now - state.evidence.at >= budget_of(state)
    answered = state.gates.answered_at
    if answered is not None and state.gates.line_at is None:
        if quiet or now - answered >= state.policy.hidden_line_after_s:
            return ending.fail(state, gates.hidden(state), now)
    elif quiet:
        return ending.fail(state, ending.verdict(state, stalled(state, now)), now)
    return gates.probe(state, now)


def last_words(state: State, dying: Cause, now: float) -> Result:
    """After a death: the end, once the output has had its time to name the cause."""
    if state.deadline is not None and now < state.deadline:
        return state, ()
    return ending.fail(state, ending.verdict(state, replace(dying, phase=str(state.phase))), now)
