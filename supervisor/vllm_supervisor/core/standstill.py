"""What follows when the supervisor itself did not run: stopped, swapped out, or on a frozen machine.

The engine may have made progress that nobody looked at, so this time counts against nobody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .effects import Effect, Log
from .phases import LOADING, Phase

if TYPE_CHECKING:
    from .events import StoodStill
    from .liveness import Life
    from .state import State


def stood_still(state: State, event: StoodStill, now: float) -> tuple[State, tuple[Effect, ...]]:
    """Budgets and the patience with a quiet engine begin later by the time that was lost."""
    lost = event.seconds
    note = Log("warning", f"the supervisor itself stood still for {lost:.1f} s, which counts against nobody")
    if state.phase in LOADING:
        evidence, gates = state.evidence, state.gates
        answered = None if gates.answered_at is None else min(gates.answered_at + lost, now)
        state = replace(
            state,
            evidence=replace(evidence, at=min(evidence.at + lost, now)),
            gates=replace(gates, answered_at=answered),
        )
    elif state.phase is Phase.PREFLIGHT and state.deadline is not None:
        state = replace(state, deadline=state.deadline + lost)
    if state.life is not None:
        engines = {label: _later(life, lost, now) for label, life in state.engines.items()}
        state = replace(state, life=_later(state.life, lost, now), engines=engines)
    return state, (note,)


def _later(life: Life, lost: float, now: float) -> Life:
    def moved(at: float | None) -> float | None:
        return None if at is None else min(at + lost, now)

    return replace(
        life,
        proof_at=min(life.proof_at + lost, now),
        canary_sent=moved(life.canary_sent),
        failing_since=moved(life.failing_since),
        unmoved_since=moved(life.unmoved_since),
        activity_at=None,
    )
