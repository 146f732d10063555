"""What the system tests stand on: real systemd, real vLLM, a real model. What is missing fails them; nothing is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import paths
from lab.install import stage_product
from lab.machine import Bind, Machine
from lab.models import tiny_model as make_tiny_model
from system.service import Service

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
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed product with the fake engine beside it, as a layer of a machine."""
    return stage_product(tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="session")
def product(stage: Path) -> Iterator[Machine]:
    """A machine on which the product is installed; shared like `machine`."""
    home = paths.dev_home()
    with Machine(layers=[stage], binds=[Bind(home)] if home.exists() else []) as booted:
        booted.run("systemd-sysusers && systemd-tmpfiles --create vllm-supervisor.conf && systemctl daemon-reload")
        yield booted


@pytest.fixture
def service(product: Machine) -> Iterator[Service]:
    """kimi.service on the installed machine; whatever a test did to it is undone."""
    service = Service(product)
    service.reset()
    yield service
    service.reset()


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
