"""Where an instance's files lie, as the command line finds them: by name or by configuration file.

The daemon is told its directories by the unit; a person who asks is not in that unit. So every
place is looked at in which a daemon could have put its socket and history, the system's first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.config.load import holder_of

from .directories import SYSTEM_RUNTIME, SYSTEM_STATE, user_state

SYSTEM_CONFIG = Path("/etc/vllm-supervisor")


@dataclass(frozen=True, slots=True)
class Place:
    """An instance as the command line knows it.

    Attributes:
        config_path: Its configuration; it may be missing for a daemon that was started elsewhere.
        socket_path: Its control socket, if there is one; else where it would be.
        history_path: The same for its history.
    """

    name: str
    config_path: Path
    socket_path: Path
    history_path: Path


class UnknownInstanceError(Exception):
    """No such instance; the message is one sentence with the remedy."""


def locate(
    wanted: str,
    environ: Mapping[str, str] | None = None,
    *,
    state_dir: Path | None = None,
    runtime_dir: Path | None = None,
    config_dir: Path = SYSTEM_CONFIG,
) -> Place:
    """The instance that `wanted` means.

    Args:
        wanted: A name (`kimi`), or the path of a configuration file.
        environ: Our environment.
        state_dir: Where its history lies, when it was started with --state-dir.
        runtime_dir: Where its socket lies, when it was started with --runtime-dir.
        config_dir: Where the configurations of the system lie.

    Raises:
        UnknownInstanceError: neither a configuration nor a trace of a start has that name.
    """
    environ = os.environ if environ is None else environ
    config = config_of(wanted, config_dir)
    name = config.stem
    runtimes = [runtime_dir] if runtime_dir else [directory / name for directory in runtime_roots(environ)]
    states = [state_dir] if state_dir else [directory / name for directory in _state_roots(environ)]
    if not runtime_dir and environ.get("RUNTIME_DIRECTORY"):
        runtimes = [Path(environ["RUNTIME_DIRECTORY"].split(":", maxsplit=1)[0])]
    if not state_dir and environ.get("STATE_DIRECTORY"):
        states = [Path(environ["STATE_DIRECTORY"].split(":", maxsplit=1)[0])]
    sockets = [directory / "control.sock" for directory in runtimes]
    histories = [directory / "history.sqlite" for directory in states]
    # A closed directory says nothing about what is in it; asking then names the permission.
    traces = any(_there(path) for path in (config, *sockets, *histories))
    if not traces:
        raise UnknownInstanceError(_unknown(wanted, config, environ, config_dir))
    return Place(name, config, _first(sockets), _first(histories))


def config_of(wanted: str, config_dir: Path = SYSTEM_CONFIG) -> Path:
    """The configuration file that is meant, which need not exist: a file has a slash or ends in .toml."""
    is_file = wanted.endswith(".toml") or "/" in wanted
    return Path(wanted).absolute() if is_file else config_dir / f"{wanted}.toml"


def names(environ: Mapping[str, str] | None = None, *, config_dir: Path = SYSTEM_CONFIG) -> list[str]:
    """Every instance that is configured on this system or runs for this user, sorted."""
    environ = os.environ if environ is None else environ
    found = {path.stem for path in _listed(config_dir) if path.suffix == ".toml"}
    for root in runtime_roots(environ):
        found |= {path.name for path in _listed(root) if _there(path / "control.sock")}
    return sorted(found)


def _unknown(wanted: str, config: Path, environ: Mapping[str, str], config_dir: Path) -> str:
    known = names(environ, config_dir=config_dir)
    other = holder_of(config)
    if other is not None:
        return f"{wanted!r} is not running: it holds the weights of {other.stem}, as {other} says; name {other.stem}"
    hint = f"known here: {', '.join(known)}" if known else "`vllm-supervisor init` writes a configuration"
    return f"there is no instance {wanted!r} ({config} does not exist); {hint}"


def runtime_roots(environ: Mapping[str, str]) -> list[Path]:
    """The directories that hold one runtime directory an instance, the system's first."""
    roots = [SYSTEM_RUNTIME]
    if environ.get("XDG_RUNTIME_DIR"):
        roots.append(Path(environ["XDG_RUNTIME_DIR"]) / "vllm-supervisor")
    return [*roots, Path(tempfile.gettempdir()) / f"vllm-supervisor-{os.getuid()}"]


def _state_roots(environ: Mapping[str, str]) -> list[Path]:
    return [SYSTEM_STATE, user_state(environ)]


def _first(paths: list[Path]) -> Path:
    return next((path for path in paths if _there(path)), paths[0])


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True


def _listed(directory: Path) -> Iterable[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
