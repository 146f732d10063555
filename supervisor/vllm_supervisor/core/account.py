"""Where the time of a start went, against the starts before it and against what the disk could do.

So that an operator sees what a faster disk, more memory or warm caches would save, before buying any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .overview import COMPARED, medians
from .phases import BEFORE_ENGINE, LOADING, Phase
from .words import duration, size

SHOWN: Final = 3
"""The longest phases that are named; what is left is told as one sum."""

FOUND: Final = 0.95
"""From this share of the weights in memory on, the disk did not hold the engine up."""

WORTH_S: Final = 1.0
"""Less is not worth a sentence about a disk."""

_BEFORE = (Phase.LAUNCHING, Phase.CONFIGURING, Phase.CONNECTING)
"""The phases in which the disk is idle, unless somebody reads ahead."""


def account(
    phases: Mapping[str, float], usual: Mapping[str, float], figures: Mapping[str, Any], rate: float | None = None
) -> list[str]:
    """A start in one or two sentences; none for one that has no phases.

    Args:
        phases: Seconds by phase.
        usual: Seconds that such starts take, by phase; empty without history.
        figures: What the history keeps of it.
        rate: Bytes a second of the disk in an earlier start, for one that read too little to tell.
    """
    spent = _spent(phases)
    if not spent:
        return []
    longest = sorted(spent, key=lambda name: -spent[name])
    named = [f"{name} {duration(spent[name])}{_usually(usual.get(name))}" for name in longest[:SHOWN]]
    rest = sum(spent[name] for name in longest[SHOWN:])
    if rest > 0:
        named.append(f"everything else {duration(rest)}")
    said = [f"{duration(sum(spent.values()))}: {', '.join(named)}"]
    limit = _limit(spent, figures, rate)
    return [f"{said[0]}.", limit] if limit else [f"{said[0]}."]


def brief(phases: Mapping[str, float], figures: Mapping[str, Any], rate: float | None = None) -> str:
    """The same for a line that has little room; empty where there is nothing to say.

    `most of it loading-weights, 20 s (the disk needs 6.5 s)`.
    """
    spent = _spent(phases)
    if not spent:
        return ""
    name = max(spent, key=lambda phase: spent[phase])
    needed = disk_seconds(figures, rate)
    bound = f" (the disk needs {duration(needed)})" if needed and name == Phase.LOADING_WEIGHTS else ""
    return f"most of it {name}, {duration(spent[name])}{bound}"


def disk_seconds(figures: Mapping[str, Any], rate: float | None = None) -> float | None:
    """How long the disk needs for the whole checkpoint at least; None where its speed is not known."""
    total, speed = _number(figures.get("checkpoint_bytes")), _speed(figures, rate)
    return total / speed if total and speed else None


def known_rate(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The speed of the disk in the newest start that told it, in bytes a second.

    Args:
        rows: The history, oldest first.
    """
    for row in reversed(rows):
        found = _number(_mapping(row.get("figures")).get("disk_bytes_per_second"))
        if found:
            return found
    return None


def of_history(rows: Sequence[Mapping[str, Any]], shown: int) -> list[str]:
    """The account of the newest of the last `shown` starts that became ready."""
    for index in range(len(rows) - 1, max(len(rows) - shown, 0) - 1, -1):
        row = rows[index]
        if row.get("ready_at") is None:
            continue
        before = [
            _mapping(other.get("phases"))
            for other in rows[:index]
            if other.get("ready_at") is not None and other.get("config_hash") == row.get("config_hash")
        ][-COMPARED:]
        said = account(
            _mapping(row.get("phases")),
            medians(before) if before else {},
            _mapping(row.get("figures")),
            known_rate(rows[: index + 1]),
        )
        return [f"The last start that became ready took {said[0]}", *said[1:]] if said else []
    return []


def _limit(spent: Mapping[str, float], figures: Mapping[str, Any], rate: float | None) -> str:
    """What the disk could have done, and what another one would gain."""
    needed, speed = disk_seconds(figures, rate), _speed(figures, rate)
    weights = spent.get(Phase.LOADING_WEIGHTS)
    if needed is None or speed is None or weights is None:
        return ""
    total = size(float(figures["checkpoint_bytes"]))
    could = f"The disk needs {duration(needed)} for {total} ({size(speed)}/s)"
    hit = _number(figures.get("readahead_hit"))
    before = sum(spent.get(phase, 0.0) for phase in _BEFORE)
    if hit is not None and hit >= FOUND:
        return f"{could}; all of it was in memory when the engine came to it: a faster disk would gain nothing."
    if hit is None and "readahead_bytes" not in figures:
        return f"{could}."
    if needed > before + WORTH_S and needed >= (before + weights) / 2:
        # Twice as fast, it is done in half the time, or waits for the engine's imports.
        gain = needed - max(needed / 2, before)
        return f"{could}, and is what the weights wait for: one twice as fast would save up to {duration(gain)}."
    if weights > needed + WORTH_S:
        found = f"{hit:.0%} of it was".replace("%", " %") if hit is not None else "not all of it was"
        return (
            f"{could}, and {found} in memory in time; the loader took {duration(weights)}: more memory to read ahead "
            "into, or another loader, would gain more than a faster disk."
        )
    return f"{could}."


def _spent(phases: Mapping[str, float]) -> dict[str, float]:
    loading = {phase.value for phase in BEFORE_ENGINE | LOADING}
    return {name: seconds for name, seconds in phases.items() if name in loading and seconds > 0}


def _usually(seconds: float | None) -> str:
    return f" (usually {duration(seconds)})" if seconds is not None else ""


def _speed(figures: Mapping[str, Any], rate: float | None) -> float | None:
    return _number(figures.get("disk_bytes_per_second")) or rate


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
