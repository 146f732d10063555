"""Writes what was measured into docs/reliability.md: the matrix, the faults on a real engine, and the soak.

usage: report.py [FILE...]     files as `make matrix`, the system tests and `make soak` leave them in build/
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "supervisor")]

from process.matrix.table import CELLS, FAULTS, OUTCOMES, PHASES  # noqa: E402 - only importable from here on

PAGE = ROOT / "docs" / "reliability.md"
SHORT = (
    "pre",
    "wait",
    "laun",
    "conf",
    "conn",
    "load",
    "comp",
    "kv",
    "graph",
    "serv",
    "verif",
    "ready",
    "drain",
    "stop",
)


def matrix(measured: dict[str, Any]) -> str:
    """One row a fault; a cell is the outcome's letter and the seconds from the fault to that end."""
    letters = {outcome: letter for letter, outcome in OUTCOMES.items()}
    cells = {(cell.fault, cell.phase): cell for cell in CELLS}
    found = measured["cells"]
    lines = [f"| fault | {' | '.join(SHORT)} |", "|---" * (len(SHORT) + 1) + "|"]
    for fault in FAULTS:
        row = []
        for phase in PHASES:
            cell = cells.get((fault, phase))
            result = found.get(cell.name) if cell else None
            if cell is None:
                row.append("")
            elif result is None:
                row.append(f"{letters[cell.outcome]} ?")
            else:
                mark = "" if not result["problem"] else " **wrong**"
                row.append(f"{letters[cell.outcome]} {seconds(result['seconds'])}{mark}")
        lines.append(f"| {fault} | {' | '.join(row)} |")
    wrong = sum(bool(each["problem"]) for each in found.values())
    said = f"{len(found) - wrong} of {len(CELLS)} cells as stated, {measured['jobs']} at a time, {os.cpu_count()} cores"
    again = measured.get("again") or []
    said += f", {measured['seconds'] / 60:.0f} minutes in all."
    if again:
        said += f" Run a second time, after a first one that was wrong: {', '.join(again)}."
    return said + "\n\n" + "\n".join(lines)


def seconds(value: float | None) -> str:
    """For a cell: what is less than can be shown is said so, what was not measured is left out."""
    if value is None:
        return ""
    return f"{value:.1f}" if value >= 0.05 else "< 0.1"


def legend() -> str:
    """What the letters mean."""
    lines = ["| | what comes of it | exit | reason | allowed |", "|---|---|---|---|---|"]
    for letter, outcome in OUTCOMES.items():
        reasons = ", ".join(f"`{reason}`" for reason in sorted(outcome.reasons))
        lines.append(f"| {letter} | {outcome.words} | {outcome.code} | {reasons} | {outcome.within_s:.0f} s |")
    return "\n".join(lines)


def real(rows: list[dict[str, Any]]) -> str:
    """The row of faults on a real engine."""
    lines = ["| fault | phase | end | seconds |", "|---|---|---|---|"]
    lines += [f"| {row['fault']} | {row['phase']} | {row['end']} | {seconds(row['seconds'])} |" for row in rows]
    return "\n".join(lines)


def soak(report: dict[str, Any]) -> str:
    """The soak in a few words and a table."""
    survived = sum(fault["survived"] for fault in report["faults"])
    head = (
        f"{report['minutes']:g} minutes, seed {report['seed']}: {survived} of {len(report['faults'])} faults survived, "
        f"{len(report['false_alarms'])} false alarms, {len(report['leftovers'])} left over, longest outage "
        f"{report['longest_outage_s']:.0f} s"
    )
    if report.get("resident_growth_kib") is None:
        head += "; too short to tell how the supervisor grows."
    else:
        head += (
            f"; growth in {report['measured_s']:.0f} s of one image of the supervisor: {report['resident_growth_kib']} KiB "
            f"and {report['descriptor_growth']} descriptors."
        )
    lines = ["| fault | what came of it | outage, s |", "|---|---|---|"]
    lines += [f"| {fault['fault']} | {fault['end']} | {seconds(fault['outage_s'])} |" for fault in report["faults"]]
    return head + "\n\n" + "\n".join(lines)


def replaced(page: str, name: str, text: str) -> str:
    """The page with the text between the two marks of `name`."""
    begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    head, _, rest = page.partition(begin)
    _, found, tail = rest.partition(end)
    assert found, f"{PAGE} lacks the marks of {name}"
    return f"{head}{begin}\n{text}\n{end}{tail}"


def main() -> int:
    page = replaced(PAGE.read_text(), "legend", legend())
    for path in map(Path, sys.argv[1:]):
        if path.exists():
            value = json.loads(path.read_text())
            name = "soak" if "minutes" in value else "matrix" if "cells" in value else "real"
            page = replaced(page, name, {"soak": soak, "matrix": matrix, "real": real}[name](value))
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
