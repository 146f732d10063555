"""Where the laboratory keeps what takes long to make: outside the checkout, where ordinary users can execute it."""

from __future__ import annotations

import os
from pathlib import Path

SYSTEM_HOME = Path("/opt/vllm-supervisor-dev")
HOME_VARIABLE = "VSUP_DEV_HOME"


class LabError(Exception):
    """A part of the laboratory cannot be made or used; the message is one sentence with the remedy."""


def dev_home() -> Path:
    """The directory of the laboratory's cache: $VSUP_DEV_HOME, else /opt for root, else the user's cache."""
    if chosen := os.environ.get(HOME_VARIABLE):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SYSTEM_HOME
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "vllm-supervisor-dev"


def engine_dir() -> Path:
    """The virtual environment with the CPU build of vLLM."""
    return dev_home() / "engine"


def engine_python() -> Path:
    """The interpreter of that environment."""
    return engine_dir() / "bin" / "python"


def vllm() -> Path:
    """The command `vllm` of that environment."""
    return engine_dir() / "bin" / "vllm"


def models_dir() -> Path:
    """Where the small models lie."""
    return dev_home() / "models"


def readable_by_others(path: Path) -> bool:
    """Whether an ordinary user can reach the path: every directory above it is open to others."""
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents) if parent.is_dir())
