"""The sentence that STATUS= shows: one ASCII line that says where things stand, at all times."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from .eta import bar_left, start_left
from .facts import FigureName
from .liveness import QUIET_S
from .phases import Phase
from .several import trouble
from .state import State, StopStep
from .words import ascii_only, duration

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT = 400
"""Characters; `systemctl status` shows one line."""

_TITLES: dict[Phase, str] = {
    Phase.LAUNCHING: "Starting the engine's processes",
    Phase.CONFIGURING: "Reading the configuration",
    Phase.CONNECTING: "Connecting the workers",
    Phase.LOADING_WEIGHTS: "Loading weights",
    Phase.COMPILING: "Compiling and profiling",
    Phase.SIZING_KV_CACHE: "Sizing the KV cache",
    Phase.CAPTURING_GRAPHS: "Capturing CUDA graphs",
    Phase.STARTING_SERVER: "Starting the server",
    Phase.VERIFYING: "Waiting for the first answer",
}


def sentence(state: State, now: float, *, rates: Mapping[str, float] | None = None, note: str = "") -> str:
    """Where the start stands at `now`, as one ASCII line.

    Args:
        state: The state.
        now: Monotonic seconds.
        rates: Tokens a second while serving, by name (`generation`, `prompt`), when known.
        note: Something of the supervisor's own that the operator must know (a busy metrics port).
    """
    text = _body(state, now, rates or {})
    if note:
        text = f"{text}; {note}"
    return ascii_only(text)[:LIMIT]


def _body(state: State, now: float, rates: Mapping[str, float]) -> str:
    phase = state.phase
    match phase:
        case Phase.PREFLIGHT:
            return "Checking configuration, checkpoint and GPUs"
        case Phase.WAITING:
            left = max((state.deadline or now) - now, 0.0)
            policy = state.policy
            if state.ahead:
                return f"Waiting for {state.ahead}, {duration(now - state.since)} so far"
            return (
                f"Waiting {duration(left)} before attempt {policy.attempt} of {policy.max_attempts}; "
                f"the last one failed: {policy.last_reason}"
            )
        case (
            Phase.LAUNCHING
            | Phase.CONFIGURING
            | Phase.CONNECTING
            | Phase.LOADING_WEIGHTS
            | Phase.COMPILING
            | Phase.SIZING_KV_CACHE
            | Phase.CAPTURING_GRAPHS
            | Phase.STARTING_SERVER
            | Phase.VERIFYING
        ):
            return _loading(state, now)
        case Phase.READY:
            return _ready(state, now, rates)
        case Phase.DRAINING:
            left = max((state.deadline or now) - now, 0.0)
            if state.stop_step is StopStep.GRACE:
                return f"Not ready any more ({state.stop_by}); draining begins in {duration(left)}"
            return f"Draining ({state.stop_by}): running requests have {duration(left)} left"
        case Phase.STOPPING:
            why = state.fault.sentence() if state.fault is not None else state.stop_by
            left_over = f"; still there: {'; '.join(state.survivors)}" if state.survivors else ""
            return f"Stopping: {why}{left_over}"
        case Phase.STOPPED:
            return f"Stopped ({state.stop_by})"
        case Phase.FAILED:
            return f"Failed: {state.fault.sentence() if state.fault is not None else 'unknown'}"
        case _:
            assert_never(phase)


def _loading(state: State, now: float) -> str:
    text = _TITLES[state.phase]
    bar = state.progress
    if bar is not None and bar.phase is state.phase:
        unit = "shard" if state.phase is Phase.LOADING_WEIGHTS else "step"
        text += f": {unit} {bar.done:.0f} of {bar.total:.0f} ({bar.done / bar.total:.0%})".replace("%)", " %)")
    if state.dying is not None:
        return f"{text}; {state.dying.summary}"
    left = start_left(state, now)
    if left is not None and left > 0:
        text += f", about {duration(left)} left"
    elif left is not None:
        text += f", {duration(now - state.started)} so far, longer than usual"
    else:
        here = bar_left(state, now)
        if here is not None and here > 0:
            text += f", about {duration(here)} left for this step"
        else:
            text += f", {duration(now - state.started)} so far"
    quiet = now - state.evidence.at
    if quiet > 30:
        text += f"; no progress for {duration(quiet)}"
    return text


def _ready(state: State, now: float, rates: Mapping[str, float]) -> str:
    life = state.life
    if state.dying is not None:
        return f"Degraded: {state.dying.summary}"
    if state.engines:
        if said := trouble(state.engines, now):
            return said
    elif life is not None and life.hung:
        return f"Hung: nothing has moved for {duration(now - life.proof_at)}"
    elif life is not None and life.canary_sent is not None and now - life.proof_at > QUIET_S * 2:
        return f"Ready, but nothing has moved for {duration(now - life.proof_at)}; asking for one token"
    elif life is not None and life.failing_since is not None:
        return f"Ready, but one-token requests fail: {life.canary_detail or 'no answer'}"
    text = "Ready"
    model = state.figures.get(FigureName.MAX_MODEL_LEN)
    if "generation" in rates:
        text += f": {rates['generation']:.1f} tokens/s generated, {rates.get('prompt', 0.0):.1f} read"
    counted = life.counted if life is not None else None
    if counted is not None and counted.running is not None:
        text += f", {counted.running:.0f} running, {counted.waiting or 0:.0f} waiting"
    if state.engines:
        text += f", {len(state.engines)} engines"
    if isinstance(model, float):
        text += f", context {model:.0f}"
    if state.smoke_test is not None and not state.smoke_test.passed:
        text += f"; smoke test failed: {state.smoke_test.verdict}"
    return text
