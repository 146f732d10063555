"""What an alert is."""
# ruff: noqa: INP001 - a folder of files to run and to deploy, no package

from __future__ import annotations

from dataclasses import dataclass

RUNBOOK = "docs/runbooks/alerts.md"


@dataclass(frozen=True)
class Alert:
    """One alert.

    Attributes:
        name: What is wrong, in one word.
        expr: When.
        hold: For how long before it fires.
        severity: `critical` wakes somebody, `warning` is looked at by day, `info` is only shown.
        summary: One sentence; it may use the labels.
    """

    name: str
    expr: str
    hold: str
    severity: str
    summary: str

    @property
    def runbook(self) -> str:
        """The section that says what to do, below the directory of the documentation."""
        return f"{RUNBOOK}#{self.name.lower()}"
