"""What the system tests stand on: real systemd, real vLLM, a real model. What is missing fails them; nothing is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import paths
from lab.machine import Bind, Machine
from lab.models import tiny_model as make_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("system")


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A booted machine that all tests of a run share: a test stops and removes what it started."""
    home = paths.dev_home()
    # Where it lies on a file system of its own, the overlay over the root would show an empty directory.
    with Machine(binds=[Bind(home)] if home.exists() else []) as booted:
        yield booted


@pytest.fixture(scope="session")
def engine() -> Path:
    """The command `vllm` of a real engine for the CPU, executable by ordinary users."""
    command = paths.vllm()
    assert command.exists(), f"{command} is missing: run `make engine-dev`"
    return command


@pytest.fixture(scope="session")
def tiny_model(engine: Path) -> Path:
    """The directory of the small reasoning model, readable by ordinary users."""
    assert engine.exists()
    return make_tiny_model()
