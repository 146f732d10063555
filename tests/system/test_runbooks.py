"""Runbooks: every part is there, every link leads somewhere, and the commands that can run here do, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.operating import clean, fake
from system.service import Service

ROOT = Path(__file__).parents[2]
BOOKS = sorted(path for path in (ROOT / "docs/runbooks").glob("*.md") if path.name not in {"README.md", "alerts.md"})
PARTS = ("**When.**", "**What you will see.**", "**Commands", "**It worked when**", "**Undo.**")
WANTED = {"start", "restart", "snapshot", "upgrade", "hung-engine", "out-of-memory", "gpu-lost", "slow-load", "disk-full", "new-machine"}  # fmt: skip
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def blocks(text: str) -> list[str]:
    return [body for body in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if body.startswith("# run\n")]


def test_every_runbook_is_there_with_every_part() -> None:
    assert {path.stem for path in BOOKS} == WANTED
    for path in BOOKS:
        text = path.read_text()
        assert [part for part in PARTS if part not in text] == [], path.name


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for path in (ROOT / "docs/runbooks").glob("*.md"):
        for file, anchor in re.findall(r"\]\(([\w.-]*)(?:#([\w-]+))?\)", path.read_text()):
            target = path.parent / file if file else path
            assert target.exists(), (path.name, file)
            headings = [line.lstrip("# ").lower() for line in target.read_text().splitlines() if line.startswith("#")]
            assert not anchor or anchor in headings, (path.name, anchor)


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    clean(service)
    fake(service, {})
    yield service
    clean(service)
    service.machine.run("systemctl disable kimi", check=False)


@pytest.mark.parametrize("path", [path for path in BOOKS if blocks(path.read_text())], ids=lambda path: path.stem)
def test_its_commands_do_what_it_says(kimi: Service, path: Path) -> None:
    if path.stem not in {"start", "new-machine"}:
        assert kimi.start().returncode == 0, kimi.journal()
    for block in blocks(path.read_text()):
        done = kimi.machine.run(f"set -e\n{block}", check=False, timeout=120)
        assert done.returncode == 0, f"{path.name}:\n{block}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
