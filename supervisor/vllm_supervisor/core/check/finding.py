"""One thing that a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What a finding means for a start."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        level: `refuse` stops a start; `warn` only tells.
        check: Which check found it, as a slug.
        reason: A key of `causes.REASONS` for a refusal, empty for a warning.
        seen: What was observed, as one sentence without its full stop.
        remedy: A command or a setting, as one sentence without its full stop.
    """

    level: Level
    check: str
    reason: str
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.level}: {self.check}: {self.seen}; {self.remedy}"


def refuse(check: str, reason: str, seen: str, remedy: str) -> Finding:
    """A finding that stops a start."""
    return Finding(Level.REFUSE, check, reason, seen, remedy)


def warn(check: str, seen: str, remedy: str) -> Finding:
    """A finding that an operator should know."""
    return Finding(Level.WARN, check, "", seen, remedy)
