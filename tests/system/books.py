"""Runbooks as tests run them: their marked blocks, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

from system.service import Service

BOOKS = Path(__file__).parents[2] / "docs/runbooks"


class Book:
    """The marked blocks of a runbook; `preamble` is what the operator's shell has before each."""

    def __init__(self, service: Service, name: str, preamble: str = "") -> None:
        self.machine, self.name, self.preamble = service.machine, name, preamble
        found = re.findall(r"```sh\n(.*?)```", (BOOKS / f"{name}.md").read_text(), re.DOTALL)
        self.left = [block for block in found if block.startswith("# run\n")]

    def run(self, stdin: str = "", timeout: float = 120.0) -> str:
        """The next block; what it printed."""
        block = self.left.pop(0)
        done = self.machine.run(f"set -e\n{self.preamble}\n{block}", check=False, timeout=timeout, stdin=stdin)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{self.name}:\n{block}\n{said}\n{self.machine.journal('kimi')}"
        assert "Traceback" not in said
        return said


def restart(service: Service, timeout: float = 120.0, preamble: str = "") -> str:
    """Restart by the runbook; what its first block said."""
    before, book = service.show("MainPID"), Book(service, "restart", preamble)
    said = book.run(timeout=timeout)
    assert "smoke      done" in said
    assert service.show("MainPID") != before
    assert "smoke      done" in book.run()
    assert "ready" in book.run()
    book.run()
    assert book.left == []
    return said


def start(service: Service, preamble: str = "") -> Book:
    """Start by the runbook; what is left of that ends it again."""
    book = Book(service, "start", preamble)
    said = book.run(timeout=300)
    assert "right" in said, said
    said = book.run()
    assert said.splitlines()[-1] == "active", said
    return book
