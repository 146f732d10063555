"""Decisions about the gates of readiness: the line, the probe, the smoke test (design 5)."""

from __future__ import annotations

from dataclasses import replace

from . import ending, serving
from .causes import Cause
from .effects import Effect, Probe, Smoke
from .events import Probed, ProbeOutcome
from .phases import LOADING, Phase
from .state import State

Result = tuple[State, tuple[Effect, ...]]

HEALTH_EVERY_S = 1.0
"""While the line is awaited, /health is asked once a second; a closed port refuses in microseconds."""

GATE_EVERY_S = 0.05
"""Once the line is seen, the other gate is tried twenty times a second (READY within 100 ms)."""


def line_seen(state: State, now: float) -> Result:
    """Gate A: the readiness line was read; the first one counts."""
    if state.phase not in LOADING or state.gates.line_at is not None:
        return state, ()
    state = state.saw(now, "the readiness line was read").enter(Phase.VERIFYING, now, state.deadline)
    state = replace(state, gates=replace(state.gates, line_at=now, probe_due=now))
    if state.gates.verified_at is not None:
        return maybe_ready(state, now)
    return probe(state, now)


def wants_probe(state: State) -> bool:
    """Whether a probe is awaited by the gates and none is under way; when it is sent says `probe_due`."""
    gates = state.gates
    return (
        state.phase in LOADING
        and state.policy.node_rank == 0
        and state.engine_alive
        and state.dying is None
        and not gates.probing
        and gates.verified_at is None
    )


def probe(state: State, now: float) -> Result:
    """Send the probe that the gates call for, unless one is under way or none is due."""
    gates = state.gates
    if not wants_probe(state) or now < gates.probe_due:
        return state, ()
    return replace(state, gates=replace(gates, probing=True)), (Probe(full=gates.line_at is not None),)


def probed(state: State, event: Probed, now: float) -> Result:
    """A probe came back; outside of loading, or after a death, it is of no interest any more."""
    gates = replace(state.gates, probing=False)
    if state.phase not in LOADING or state.dying is not None:
        return replace(state, gates=gates), ()
    pause = GATE_EVERY_S if gates.line_at is not None else HEALTH_EVERY_S
    strangers = gates.strangers + 1 if event.outcome is ProbeOutcome.STRANGER else 0
    gates = replace(gates, detail=event.detail, strangers=strangers, probe_due=now + pause)
    state = replace(state, gates=gates)
    match event.outcome:
        case ProbeOutcome.REFUSED | ProbeOutcome.UNHEALTHY:
            return state, ()
        case ProbeOutcome.STRANGER:
            # Once may be a process that is just going; twice in a row is a fault.
            return (state, ()) if strangers < 2 else ending.fail(state, _stranger(state, event), now)
        case ProbeOutcome.WRONG_MODEL:
            return ending.fail(state, _wrong_model(state, event), now)
        case ProbeOutcome.HEALTHY | ProbeOutcome.NO_ANSWER | ProbeOutcome.ANSWERED:
            return _healthy(state, event, now)


def _healthy(state: State, event: Probed, now: float) -> Result:
    gates = state.gates
    if gates.answered_at is None:
        gates = replace(gates, answered_at=now)
        state = replace(state, gates=gates).saw(now, "/health answered").enter(Phase.VERIFYING, now)
    if event.outcome is ProbeOutcome.ANSWERED:
        gates = replace(gates, verified_at=now, seconds=event.seconds)
        # The wait for the first answer is a gap, too: budgets learn from it.
        return maybe_ready(replace(state, gates=gates).saw(now, "a request was answered"), now)
    if event.outcome is ProbeOutcome.HEALTHY and not event.full and gates.line_at is not None:
        # The line came while /health was being asked: go on to the real request at once.
        return probe(replace(state, gates=replace(gates, probe_due=now)), now)
    return state, ()


def maybe_ready(state: State, now: float) -> Result:
    """READY, once every gate is open for one living engine, and for every node of a cluster."""
    gates = state.gates
    if gates.line_at is None or gates.verified_at is None or not state.engine_alive or state.dying is not None:
        return state, ()
    if state.policy.nnodes > 1 and not state.peers.up:
        return state, ()
    if state.policy.smoke == "require" and not gates.smoke_passed:
        if gates.smoke_asked:
            return state, ()
        return replace(state, gates=replace(gates, smoke_asked=True)), (Smoke(),)
    return serving.become_ready(state, now)


def smoke_passed(state: State, now: float) -> Result:
    """The third gate is open."""
    state = replace(state, gates=replace(state.gates, smoke_passed=True)).saw(now, "the smoke test passed")
    return maybe_ready(state, now)


def _stranger(state: State, event: Probed) -> Cause:
    advice = "Stop that process or give the engine another port."
    return Cause("stranger-on-port", summary=event.detail, advice=advice, phase=state.phase)


def _wrong_model(state: State, event: Probed) -> Cause:
    advice = "Make engine.served_model_name and the arguments agree."
    return Cause("configuration-invalid", summary=event.detail, advice=advice, phase=state.phase)


def hidden(state: State) -> Cause:
    """The cause of an engine that answers and never printed its line."""
    return Cause(
        "readiness-line-hidden",
        summary="the engine answers /health but never printed 'Application startup complete'",
        advice="Remove what hides it: --uvicorn-log-level, a logging configuration file or VLLM_LOGGING_CONFIG_PATH.",
        phase=state.phase,
    )
