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
        unknown: Nothing was observed, for want of rights; `seen` says what of.
    """

    level: Level
    check: str
    reason: str
    seen: str
    remedy: str
    unknown: bool = False

    def __str__(self) -> str:
        return f"{self.level}: {self.check}: {self.seen}; {self.remedy}"


def refuse(check: str, reason: str, seen: str, remedy: str) -> Finding:
    """A finding that stops a start."""
    return Finding(Level.REFUSE, check, reason, seen, remedy)


def warn(check: str, seen: str, remedy: str) -> Finding:
    """A finding that an operator should know."""
    return Finding(Level.WARN, check, "", seen, remedy)


def unknown(check: str, what: str) -> Finding:
    """A warning that something could not be looked at; many of them are one line for a reader."""
    seen = f"{what} is unknown (only root may look, or the driver is not loaded)"
    return Finding(Level.WARN, check, "", seen, "run the check as root", unknown=True)


def grouped(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The same for a reader: everything that could not be looked at in one finding, at the end."""
    hidden = [finding for finding in found if finding.unknown]
    if len(hidden) < 2:
        return found
    names = ", ".join(finding.check for finding in hidden)
    seen = f"{len(hidden)} things could not be looked at: {names} (only root may look, or the driver is not loaded)"
    one = Finding(Level.WARN, "unknown", "", seen, f"{hidden[0].remedy}; --verbose has a line for each", unknown=True)
    return (*(finding for finding in found if not finding.unknown), one)
