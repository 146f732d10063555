"""What the helper reports, and the words for it in STATUS, on pages and in the history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from vllm_supervisor.core.words import size


class Doing(StrEnum):
    """What the reading does at this moment."""

    OFF = "off"
    READING = "reading"
    PAUSED = "paused"
    FULL = "full"
    DONE = "done"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """The reading ahead of one start so far. Bytes and seconds.

    Attributes:
        doing: What it does now.
        why: Why it is off, paused or has failed, in a few words.
        window: It does not fit as a whole, and runs ahead of the engine.
        shards: How many the checkpoint has.
        total_bytes: All of it.
        read_bytes: Read from the disk.
        cached_bytes: Found in memory, not read.
        dropped_bytes: Given back after the engine had loaded it.
        ahead_bytes: Read or found, and still to be loaded by the engine.
        reading_seconds: Time in which it read.
        rate: Bytes a second over the last seconds; None while it does not read.
        hit_bytes: Of the shards that the engine has come to, so much was in memory when it did.
        met_bytes: The size of these shards; 0 where it could not be told.
        seconds: Since it began.
    """

    doing: Doing = Doing.OFF
    why: str = ""
    window: bool = False
    shards: int = 0
    total_bytes: int = 0
    read_bytes: int = 0
    cached_bytes: int = 0
    dropped_bytes: int = 0
    ahead_bytes: int = 0
    reading_seconds: float = 0.0
    rate: float | None = None
    hit_bytes: int = 0
    met_bytes: int = 0
    seconds: float = 0.0

    @property
    def hit_ratio(self) -> float | None:
        """Share of what the engine came to that was in memory; None while it has come to nothing."""
        return self.hit_bytes / self.met_bytes if self.met_bytes else None

    @property
    def disk_rate(self) -> float | None:
        """Bytes a second of the disk while it was read; None where too little was read to tell."""
        if self.read_bytes < ENOUGH_BYTES or self.reading_seconds <= 0:
            return None
        return self.read_bytes / self.reading_seconds


ENOUGH_BYTES = 256 << 20
"""A rate over fewer bytes says more about caches than about the disk."""


def to_line(report: Report) -> bytes:
    """The report as a line."""
    return json.dumps(asdict(report), separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Report:
    """The report of a line.

    Raises:
        ValueError: it is none.
    """
    return from_fields(json.loads(line))


def from_fields(found: Any) -> Report:
    """The report of its fields.

    Raises:
        ValueError: it is none.
    """
    known = {field.name for field in fields(Report)}
    if not isinstance(found, Mapping) or not found.keys() <= known or "doing" not in found:
        raise ValueError("no report")
    return Report(**{**found, "doing": Doing(found["doing"])})


def words(report: Report, *, loading: bool) -> str:
    """A part of STATUS while it says something of use; ASCII, else empty.

    Args:
        report: The last one.
        loading: Whether the engine reads its weights now.
    """
    if report.doing is Doing.FAILED:
        return f"read-ahead failed: {report.why}"
    there = report.read_bytes + report.cached_bytes
    if loading:
        hit = report.hit_ratio
        if hit is None:
            return ""
        rate = report.disk_rate
        speed = f", the disk gives {size(rate)}/s" if rate and hit < 1 else ""
        return f"{percent(hit)} of the weights found in memory{speed}"
    share = percent(there / report.total_bytes) if report.total_bytes else ""
    if report.doing is Doing.READING and report.total_bytes:
        at = f" at {size(report.rate)}/s" if report.rate else ""
        return f"reading ahead: {share} of {size(report.total_bytes)}{at}"
    if report.doing is Doing.PAUSED:
        return f"reading ahead is paused at {share}: {report.why}" if share else ""
    if report.doing is Doing.FULL:
        return f"{size(report.ahead_bytes)} of {size(report.total_bytes)} read ahead, more does not fit"
    if report.doing is Doing.DONE:
        return f"all {size(report.total_bytes)} of weights are in memory"
    return ""


def figures(report: Report) -> dict[str, Any]:
    """What the history keeps of it: plain numbers by name; empty where nothing was there to read."""
    if not report.total_bytes:
        return {}
    found: dict[str, Any] = {"checkpoint_bytes": report.total_bytes, "readahead_bytes": report.read_bytes}
    if report.hit_ratio is not None:
        found["readahead_hit"] = round(report.hit_ratio, 4)
    if report.disk_rate is not None:
        found["disk_bytes_per_second"] = round(report.disk_rate)
    return found


def percent(share: float) -> str:
    """`62 %`; 100 only when nothing is missing."""
    return f"{min(round(share * 100), 100 if share >= 1 else 99)} %"
