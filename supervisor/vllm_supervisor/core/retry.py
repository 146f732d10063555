"""What the history says about this start: the row of failures, the wait, budgets and usual lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .exits import RESTARTED
from .phases import DEFAULT_BUDGETS, Phase, budget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROW_GAP_S = 90.0
"""systemd restarts a second after the exit; a start that comes later than this was a person's."""

SERVED_S = 600.0
"""A start that served so long was a success: its failure begins a row, whatever came before it. One
that dies sooner after each READY would otherwise be started again for ever."""

CUT_OFF_S = 7200.0
"""Of a start that was cut off the end is unknown; one that began longer ago was not systemd's last."""

SUCCESSES = 5
"""So many successful starts make the usual lengths."""


@dataclass(frozen=True, slots=True)
class PastStart:
    """One row of the history. Times are seconds of the wall clock.

    Attributes:
        outcome: `ready`, `stopped`, `failed`, or empty while it runs (or when it was cut off).
        exit_code: The daemon's exit code; None when it never exited by itself.
        boot_id: Which boot of the machine it belongs to.
    """

    began_at: float
    ended_at: float | None = None
    boot_id: str = ""
    ready_at: float | None = None
    outcome: str = ""
    exit_code: int | None = None
    reason: str = ""
    sentence: str = ""
    config_hash: str = ""
    engine_version: str = ""
    phases: Mapping[Phase, float] | None = None
    gaps: Mapping[Phase, float] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The row of failures that this start continues: how many, and why the last one failed."""

    failures: int = 0
    last_reason: str = ""


def row_of_failures(past: Sequence[PastStart], now: float, boot_id: str) -> Row:
    """The transient failures right before now that systemd answered by starting again.

    A start that was stopped on request or failed for good, and one that lies before a pause or a
    reboot, ends the row: whoever starts after that starts anew. So does one that served: it is the
    first failure of its row.

    Args:
        past: The earlier starts, oldest first.
        now: Wall-clock seconds of this start.
        boot_id: The present boot.
    """
    failures, reason, after = 0, "", now
    for start in reversed(past):
        if start.boot_id != boot_id or not _restarted(start, after):
            break
        failures += 1
        reason = reason or start.sentence or start.reason or "it ended without a word"
        end = start.ended_at if start.ended_at is not None else after
        if start.ready_at is not None and end - start.ready_at >= SERVED_S:
            break
        after = start.began_at
    return Row(failures, reason)


def _restarted(start: PastStart, after: float) -> bool:
    """Whether the start at `after` was systemd's answer to the end of this one."""
    if start.outcome == "stopped":
        return False
    if start.exit_code is None:
        return start.ready_at is not None or after - start.began_at <= CUT_OFF_S
    end = start.ended_at if start.ended_at is not None else start.began_at
    return start.exit_code in RESTARTED and after - end <= ROW_GAP_S


def wait_before(failures: int, first_s: float, longest_s: float) -> float:
    """The pause before the next attempt, in seconds: doubling from `first_s`, at most `longest_s`."""
    if failures <= 0:
        return 0.0
    return float(min(first_s * 2.0 ** min(failures - 1, 30), longest_s))


def usual_phases(past: Sequence[PastStart], config_hash: str) -> dict[Phase, float]:
    """The median length of each phase in the last successful starts of this configuration, in seconds.

    Starts of another configuration serve when there is none of this one.
    """
    return _medians([start.phases or {} for start in _successes(past, config_hash)])


def learnt_budgets(past: Sequence[PastStart], config_hash: str) -> dict[Phase, float]:
    """The stall budget of each phase, in seconds, from the longest gaps of successful starts."""
    longest: dict[Phase, float] = {}
    for start in _successes(past, config_hash):
        for phase, gap in (start.gaps or {}).items():
            longest[phase] = max(longest.get(phase, 0.0), gap)
    return {phase: budget(phase, longest.get(phase)) for phase in DEFAULT_BUDGETS}


def _successes(past: Sequence[PastStart], config_hash: str) -> list[PastStart]:
    ready = [start for start in past if start.ready_at is not None]
    same = [start for start in ready if start.config_hash == config_hash]
    return (same or ready)[-SUCCESSES:]


def _medians(rows: Sequence[Mapping[Phase, float]]) -> dict[Phase, float]:
    values: dict[Phase, list[float]] = {}
    for row in rows:
        for phase, seconds in row.items():
            values.setdefault(phase, []).append(seconds)
    return {phase: _median(sorted(found)) for phase, found in values.items()}


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0
