"""What people are shown of a start, wherever they look: terminal, page, history.

Works on plain values (the JSON of /status, rows of the history), because the command line has
nothing else, and the daemon's page shows the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .phases import BEFORE_ENGINE, LOADING, ORDER, Phase
from .words import duration

SLOW_RATIO = 1.5
"""A start or a phase that takes so many times as long as usual is worth a word …"""

SLOW_LEAST_S = 5.0
"""… when that is at least so many seconds more."""

COMPARED = 5
"""Successful starts that a start is compared with."""

_STARTING = tuple(phase for phase in ORDER if phase in BEFORE_ENGINE | LOADING)


class Standing(StrEnum):
    """Where a phase stands in its start."""

    DONE = "done"
    NOW = "now"
    FAILED = "failed"
    TODO = "to come"


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of a start.

    Attributes:
        seconds: Spent in it so far; None when it was not entered.
        usual: Seconds that it usually takes; None without history.
        slow: It takes much longer than usual.
    """

    phase: Phase
    standing: Standing
    seconds: float | None
    usual: float | None
    slow: bool


def mood(status: Mapping[str, Any]) -> tuple[str, str]:
    """A class and a word for the state as a whole."""
    phase = str(status["phase"])
    if phase == "ready":
        if (status.get("liveness") or {}).get("hung"):
            return "bad", "hung"
        return ("bad", "degraded") if str(status["status"]).startswith("Degraded") else ("good", "ready")
    if phase == "failed":
        return "bad", "failed"
    return ("warn", phase) if phase in {"waiting", "draining", "stopping", "stopped"} else ("busy", phase)


def phase_rows(status: Mapping[str, Any]) -> list[PhaseRow]:
    """The phases of a start in their order, with those that usually follow.

    Args:
        status: What /status says.
    """
    spent = _numbers(status.get("phases"))
    expected = _numbers(status.get("expected"))
    here = str(status.get("phase", ""))
    fault = status.get("fault")
    broken = str(fault.get("phase", "")) if isinstance(fault, Mapping) else ""
    starting = here in set(_STARTING)
    rows = []
    for phase in _STARTING:
        seconds, usual = spent.get(phase.value), expected.get(phase.value)
        later = starting and _STARTING.index(phase) > _STARTING.index(Phase(here))
        if phase.value == here:
            standing = Standing.NOW
        elif seconds is not None and phase.value == broken and not starting:
            standing = Standing.FAILED
        elif seconds is not None:
            standing = Standing.DONE
        elif later and usual is not None and phase not in BEFORE_ENGINE:
            standing = Standing.TODO
        else:
            continue
        slow = phase not in BEFORE_ENGINE and is_slow(seconds, usual)
        rows.append(PhaseRow(phase, standing, seconds, usual, slow))
    return rows


def is_slow(seconds: float | None, usual: float | None) -> bool:
    """Whether something takes much longer than usual."""
    if seconds is None or usual is None:
        return False
    return seconds > usual * SLOW_RATIO and seconds - usual > SLOW_LEAST_S


def slower(spent: Mapping[str, float], usual: Mapping[str, float], others: int) -> str:
    """One sentence when a start took much longer than usual, and in which phase; else empty.

    Args:
        spent: Seconds by phase of the start in question.
        usual: Seconds by phase that such a start takes.
        others: How many starts `usual` comes from.
    """
    loading = {phase.value for phase in LOADING}
    took = sum(seconds for name, seconds in spent.items() if name in loading)
    # Phases that are still to come must not make an unfinished start look fast.
    before = sum(usual.get(name, 0.0) for name in spent if name in loading)
    if before <= 0 or not is_slow(took, before):
        return ""
    excess = {name: seconds - usual.get(name, 0.0) for name, seconds in spent.items() if name in loading}
    worst = max(excess, key=lambda name: excess[name])
    than = "the one before" if others == 1 else f"the last {_count(others)}"
    return (
        f"{took / before:.1f} times as long as {than}, most of it in {worst} "
        f"({duration(spent[worst])} instead of {duration(usual.get(worst, 0.0))})"
    )


def pace(rows: Sequence[Mapping[str, Any]], index: int) -> str:
    """`slower` for a start of the history, against the successful starts of its configuration before it.

    Args:
        rows: The history, oldest first, as `adapters.history` reads it.
        index: Which start.
    """
    row = rows[index]
    if row.get("ready_at") is None:
        return ""
    before = [
        _numbers(other.get("phases"))
        for other in rows[:index]
        if other.get("ready_at") is not None and other.get("config_hash") == row.get("config_hash")
    ][-COMPARED:]
    if not before:
        return ""
    return slower(_numbers(row.get("phases")), medians(before), len(before))


def medians(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each name's values."""
    values: dict[str, list[float]] = {}
    for one in several:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: _median(found) for name, found in values.items()}


def load_seconds(row: Mapping[str, Any]) -> float | None:
    """Seconds from the begin of a start of the history until it was ready; None when it never was."""
    began, ready = row.get("began_at"), row.get("ready_at")
    return ready - began if isinstance(began, (int, float)) and isinstance(ready, (int, float)) else None


def last_failure(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The newest start of the history that failed; None when none did."""
    return next((row for row in reversed(rows) if row.get("outcome") == "failed"), None)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    return {str(name): float(value) for name, value in values.items() if isinstance(value, (int, float))}


def _count(number: int) -> str:
    return ("no", "one", "two", "three", "four", "five")[number] if number <= 5 else str(number)
