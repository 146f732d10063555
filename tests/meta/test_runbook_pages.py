"""Runbooks as pages: every part is there, every link leads somewhere, and what no test runs says why."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs/runbooks"
BOOKS = sorted(path for path in FOLDER.glob("*.md") if path.name not in {"README.md", "alerts.md"})
PARTS = ("**When.**", "**What you will see.**", "**Commands", "**It worked when**", "**Undo.**")
WANTED = {"start", "restart", "snapshot", "upgrade", "hung-engine", "out-of-memory", "gpu-lost", "slow-load", "disk-full", "new-machine", "two-nodes"}  # fmt: skip


def test_every_runbook_is_there_with_every_part() -> None:
    assert {path.stem for path in BOOKS} == WANTED
    for path in BOOKS:
        text = path.read_text()
        assert [part for part in PARTS if part not in text] == [], path.name


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for path in FOLDER.glob("*.md"):
        for file, anchor in re.findall(r"\]\(([\w.-]*)(?:#([\w-]+))?\)", path.read_text()):
            target = path.parent / file if file else path
            assert target.exists(), (path.name, file)
            headings = [line.lstrip("# ").lower() for line in target.read_text().splitlines() if line.startswith("#")]
            assert not anchor or anchor in headings, (path.name, anchor)


def test_a_block_is_run_by_a_test_or_says_why_not() -> None:
    for path in BOOKS:
        for before, block in re.findall(r"^([^\n]*)\n```sh\n(.*?)```", path.read_text(), re.DOTALL | re.MULTILINE):
            reason = re.fullmatch(r"<!-- not run: \w.{20,} -->", before)
            assert block.startswith("# run\n") or reason, f"{path.name}:\n{block}"
