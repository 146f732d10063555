"""Where an instance keeps its state and its sockets."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Mapping
from pathlib import Path

SYSTEM_STATE = Path("/var/lib/vllm-supervisor")
SYSTEM_RUNTIME = Path("/run/vllm-supervisor")


def state_directory(name: str, environ: Mapping[str, str]) -> Path:
    """The unit's directory; else the system's one where it can be used; else the user's."""
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":", maxsplit=1)[0])
    if os.access(SYSTEM_STATE / name, os.W_OK):
        return SYSTEM_STATE / name
    return user_state(environ) / name


def user_state(environ: Mapping[str, str]) -> Path:
    """Where a user's own instances keep their state: XDG's place; without $HOME (cron), in the home of the passwd."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else _home(environ) / ".local/state") / "vllm-supervisor"


def _home(environ: Mapping[str, str]) -> Path:
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path("/")


def runtime_directory(name: str, environ: Mapping[str, str]) -> Path:
    """The unit's directory; else the system's one where it can be used; else the user's."""
    if environ.get("RUNTIME_DIRECTORY"):
        return Path(environ["RUNTIME_DIRECTORY"].split(":", maxsplit=1)[0])
    if os.access(SYSTEM_RUNTIME / name, os.W_OK):
        return SYSTEM_RUNTIME / name
    base = environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "vllm-supervisor" / name
    return Path(tempfile.gettempdir()) / f"vllm-supervisor-{os.getuid()}" / name
