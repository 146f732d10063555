"""All instances of a machine in one table: for `status` without a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .overview import mood
from .plain import ago, printable, table
from .words import duration

COLUMNS = ("instance", "state", "ready", "progress", "GPUs", "tokens/s", "last failure")


def roster_lines(rows: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """The table, as plain lines.

    Args:
        rows: One mapping an instance: `name`, `gpus` in words, `status` as /status says it (or as much as is
            known of it, None when it does not run), `failure` (the newest failed start of its history), `problems`
            (of the configuration of one that does not run) and `closed`, when supervisor and history may not be read.
        now: Wall-clock seconds.
    """
    return table([COLUMNS, *(_cells(row, now) for row in rows)])


def all_ready(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every instance can answer."""
    return bool(rows) and all((row.get("status") or {}).get("ready") for row in rows)


def _cells(row: Mapping[str, Any], now: float) -> tuple[str, ...]:
    status = row.get("status")
    failure = _failure(row, now)
    if not status:
        state = "not running, bad configuration" if row.get("problems") else "not running"
        return (row["name"], state, "no", "-", row["gpus"], "-", failure)
    state = mood({"liveness": None, **status})[1]
    rates = status.get("rates") or {}
    speed = f"{rates['generation']:.1f}" if status.get("ready") and "generation" in rates else "-"
    return (row["name"], state, "yes" if status.get("ready") else "no", _progress(status), row["gpus"], speed, failure)


def _progress(status: Mapping[str, Any]) -> str:
    if status.get("ready"):
        return "-"
    if status.get("phase") == "waiting":
        return printable(str(status.get("status") or "-"))[:60]
    parts = []
    shards = status.get("shards")
    if shards and status.get("phase") == "loading-weights":
        parts.append(f"shard {shards['loaded']:.0f} of {shards['total']:.0f}")
    if isinstance(status.get("eta_seconds"), (int, float)):
        parts.append(f"about {duration(status['eta_seconds'])} left")
    return ", ".join(parts) or "-"


def _failure(row: Mapping[str, Any], now: float) -> str:
    if row.get("closed"):
        return "? (may not be read)"
    failure = row.get("failure")
    if not failure:
        return "-"
    return f"{failure.get('reason') or 'unknown'}, {ago(failure.get('ended_at') or failure['began_at'], now)} ago"
