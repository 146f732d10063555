"""The product as `make install` lays it down, in a directory that becomes a layer of a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs make without the flags of an outer make; its output is returned, whatever its status."""
    theirs = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    environment = {name: value for name, value in os.environ.items() if name not in theirs}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def stage_product(directory: Path) -> Path:
    """Installs into `directory`, with the fake engine under /srv/fake; the directory."""
    done = make("install", f"DESTDIR={directory}")
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(ROOT / "tests/fake", directory / "srv/fake", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests/corpus", directory / "srv/corpus")
    return directory
