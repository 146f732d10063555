"""Decisions while the engine loads: phases, evidence, the gates of readiness, stalls."""

from __future__ import annotations

from dataclasses import replace

from . import ending, serving
from .causes import Cause
from .effects import Effect, KillEngine, Log, Probe, Smoke
from .events import Activity, Launched, Output, Probed, ProbeOutcome, ProcessDied, Role
from .facts import CauseFound, Figure, PhaseSeen, Progress, StartupComplete
from .phases import DEFAULT_BUDGETS, LOADING, SERVING, Phase
from .state import State
from .words import duration

Result = tuple[State, tuple[Effect, ...]]

HEALTH_EVERY_S = 1.0
"""While the line is awaited, /health is asked once a second; a closed port refuses in microseconds."""

GATE_EVERY_S = 0.05
"""Once the line is seen, the other gate is tried twenty times a second (READY within 100 ms)."""

LAST_WORDS_S = 2.0
"""After a process of the engine died, so long its output may still name the cause."""

_READ_STEP = 1 << 20
_RESIDENT_STEP = 8 << 20
_GPU_STEP = 16 << 20
_COMPILER_STEP_S = 0.5


def budget_of(state: State) -> float:
    """The stall budget of the present phase, in seconds."""
    return state.policy.budgets.get(state.phase, DEFAULT_BUDGETS.get(state.phase, 120.0))


def launched(state: State, event: Launched, now: float) -> Result:
    """The engine's main process exists."""
    if state.phase is not Phase.LAUNCHING:
        # A stop came while it was being started: it is ours and must go.
        state = replace(state, engine_pid=event.pid, engine_alive=True)
        return state, (KillEngine(),)
    state = replace(
        state,
        engine_pid=event.pid,
        engine_alive=True,
        gates=replace(state.gates, probe_due=now + HEALTH_EVERY_S),
    )
    return state.saw(now, "the engine's process started"), ()


def output(state: State, event: Output, now: float) -> Result:
    """The engine printed something that means something."""
    effects: list[Effect] = []
    for fact in event.facts:
        match fact:
            case PhaseSeen():
                state = _phase_seen(state, fact.phase, now)
            case Progress():
                state = _progressed(state, fact, now)
            case Figure():
                state = replace(state, figures={**state.figures, fact.name: fact.value})
                if state.phase in LOADING:
                    state = state.saw(now, f"the log gives {fact.name}")
            case CauseFound():
                state = replace(state, suspect=fact.cause)
            case StartupComplete():
                state, more = _line_seen(state, now)
                effects.extend(more)
    return state, tuple(effects)


def _phase_seen(state: State, phase: Phase, now: float) -> State:
    if state.phase not in LOADING or phase not in LOADING:
        return state
    if state.phase is not Phase.VERIFYING:
        state = state.saw(now, f"the log reached {phase}").enter(phase, now)
    return state.saw(now, f"the log reached {phase}")


def _progressed(state: State, fact: Progress, now: float) -> State:
    state = _phase_seen(state, fact.phase, now)
    if fact.phase is Phase.LOADING_WEIGHTS:
        state = replace(state, shards=fact)
    before = state.progress
    if before is None or before.bar != fact.bar or fact.done < before.done:
        return replace(state, progress=fact, progress_since=now, progress_from=fact.done)
    return replace(state, progress=fact)


def _line_seen(state: State, now: float) -> Result:
    if state.phase not in LOADING or state.gates.line_at is not None:
        return state, ()
    state = state.saw(now, "the readiness line was read").enter(Phase.VERIFYING, now)
    state = replace(state, gates=replace(state.gates, line_at=now, probe_due=now))
    return _probe(state, now)


def _probe(state: State, now: float) -> Result:
    """Send the probe that the gates call for, unless one is under way or none is due."""
    gates = state.gates
    if gates.probing or now < gates.probe_due or gates.verified_at is not None or not state.engine_alive:
        return state, ()
    full = gates.line_at is not None
    return replace(state, gates=replace(gates, probing=True)), (Probe(full=full),)


def probed(state: State, event: Probed, now: float) -> Result:
    """A probe came back; outside of loading it is of no interest any more."""
    if state.phase not in LOADING:
        return replace(state, gates=replace(state.gates, probing=False)), ()
    pause = GATE_EVERY_S if state.gates.line_at is not None else HEALTH_EVERY_S
    gates = replace(state.gates, probing=False, detail=event.detail, strangers=0, probe_due=now + pause)
    state = replace(state, gates=gates)
    if event.outcome in {ProbeOutcome.REFUSED, ProbeOutcome.UNHEALTHY}:
        return state, ()
    if event.outcome is ProbeOutcome.STRANGER:
        return _stranger(state, event, now)
    if gates.answered_at is None:
        gates = replace(gates, answered_at=now)
        state = replace(state, gates=gates).saw(now, "/health answered").enter(Phase.VERIFYING, now)
    if event.outcome is ProbeOutcome.HEALTHY and not event.full and gates.line_at is not None:
        # The line came while /health was being asked: go on to the real request at once.
        return _probe(replace(state, gates=replace(gates, probe_due=now)), now)
    if event.outcome is ProbeOutcome.WRONG_MODEL:
        advice = "Make engine.served_model_name and the arguments agree."
        cause = Cause("configuration-invalid", summary=event.detail, advice=advice, phase=state.phase)
        return ending.fail(state, cause, now)
    if event.outcome is ProbeOutcome.ANSWERED:
        gates = replace(gates, verified_at=now, seconds=event.seconds)
        return _maybe_ready(replace(state, gates=gates), now)
    return state, ()


def _stranger(state: State, event: Probed, now: float) -> Result:
    count = state.gates.strangers + 1
    if count < 2:
        return replace(state, gates=replace(state.gates, strangers=count)), ()
    advice = "Stop that process or give the engine another port."
    cause = Cause("stranger-on-port", summary=event.detail, advice=advice, phase=state.phase)
    return ending.fail(state, cause, now)


def _maybe_ready(state: State, now: float) -> Result:
    gates = state.gates
    if gates.line_at is None or gates.verified_at is None or not state.engine_alive:
        return state, ()
    if state.policy.smoke == "require" and not gates.smoke_passed:
        if gates.smoke_asked:
            return state, ()
        return replace(state, gates=replace(gates, smoke_asked=True)), (Smoke(),)
    return serving.become_ready(state, now)


def smoke_passed(state: State, now: float) -> Result:
    """The third gate is open."""
    state = replace(state, gates=replace(state.gates, smoke_passed=True))
    return _maybe_ready(state, now)


def activity(state: State, event: Activity, now: float) -> Result:
    """A sample of the engine's processes: growth is evidence, standing still is not."""
    if state.phase not in LOADING:
        return state, ()
    high, what = _grown(state.activity, event)
    state = replace(state, activity=high)
    return (state.saw(now, what), ()) if what else (state, ())


def _grown(high: Activity, event: Activity) -> tuple[Activity, str]:
    """The new high-water marks, and what has grown enough to count."""
    what = ""
    marks = high
    for name, least, words in (
        ("read_bytes", _READ_STEP, "the engine read from disk"),
        ("gpu_bytes", _GPU_STEP, "GPU memory grew"),
        ("resident_bytes", _RESIDENT_STEP, "memory grew"),
        ("cache_files", 1, "the compile cache grew"),
        ("compiler_cpu_s", _COMPILER_STEP_S, "a compiler works"),
    ):
        new, old = getattr(event, name), getattr(marks, name)
        if new is None:
            continue
        if old is None:
            marks = replace(marks, **{name: new})
        elif new - old >= least:
            marks = replace(marks, **{name: new})
            what = what or words
        elif name == "compiler_cpu_s" and new < old:
            marks = replace(marks, **{name: new})  # compilers end; their time starts anew
    carried = ("worker_cpu_s", "gpu_power_watts", "gpu_power_limit_watts", "gpu_utilization", "connections")
    return replace(marks, **{name: getattr(event, name) for name in carried}), what


def process_died(state: State, event: ProcessDied, now: float) -> Result:
    """A process of the engine is gone; for a worker or the engine core that is the end of the start."""
    if event.role not in {Role.WORKER, Role.ENGINE_CORE, Role.API_SERVER} or state.dying is not None:
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
    state = replace(state, dying=cause, deadline=now + LAST_WORDS_S)
    return state, (Log("error", f"{name} (pid {event.pid}) died"),)


def stalled(state: State, now: float) -> Cause:
    """The cause of a phase whose budget ran out, with what still moved and at which power."""
    quiet = now - state.evidence.at
    seen = state.activity
    words = [f"no progress in {state.phase} for {duration(quiet)} (last: {state.evidence.what or 'nothing'})"]
    if seen.gpu_utilization is not None and seen.gpu_power_watts is not None:
        words.append(f"GPU utilisation {seen.gpu_utilization:.0%} at {seen.gpu_power_watts:.0f} W")
    elif seen.worker_cpu_s is not None:
        words.append(f"workers used {seen.worker_cpu_s:.0f} s of CPU time in all")
    if state.phase is Phase.VERIFYING:
        detail = state.gates.detail or "no answer"
        summary = f"the readiness line was printed, but no request was answered for {duration(quiet)}: {detail}"
        return Cause("not-answering", summary=summary, phase=state.phase, advice="Look at the engine's log and GPUs.")
    advice = "A start that hangs here once is tried again; if it repeats, see the runbook for slow loads."
    return Cause("load-stalled", summary=", ".join(words), phase=state.phase, advice=advice)


def _hidden(state: State) -> Cause:
    return Cause(
        "readiness-line-hidden",
        summary="the engine answers /health but never printed 'Application startup complete'",
        advice="Remove what hides it: --uvicorn-log-level, a logging configuration file or VLLM_LOGGING_CONFIG_PATH.",
        phase=state.phase,
    )


def tick(state: State, now: float) -> Result:
    """Time passed while the engine loads."""
    if state.dying is not None:
        if state.deadline is not None and now >= state.deadline:
            return ending.fail(state, ending.verdict(state, state.dying), now)
        return state, ()
    gates = state.gates
    if gates.answered_at is not None and gates.line_at is None:
        if now - gates.answered_at >= state.policy.hidden_line_after_s:
            return ending.fail(state, _hidden(state), now)
    elif now - state.evidence.at >= budget_of(state):
        return ending.fail(state, ending.verdict(state, stalled(state, now)), now)
    return _probe(state, now)
