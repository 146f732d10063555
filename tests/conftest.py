"""What tests of several kinds use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user reaches; those of pytest are closed again whenever another run begins."""
    path = Path(tempfile.mkdtemp(prefix="vsup-open.", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
