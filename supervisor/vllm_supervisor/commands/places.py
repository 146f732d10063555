"""The arguments that say which instance a verb is about."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.exits import NOPERM, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_supervisor.config import Problem
    from vllm_supervisor.daemon.instance import Instance
    from vllm_supervisor.daemon.locate import Place

WHO = "run as root or as the service's user"


def add_places(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Declare them.

    Args:
        parser: The verb's parser.
        required: The instance must be named.
    """
    if required:
        parser.add_argument("instance", metavar="INSTANCE", help="name or configuration file")
    else:
        parser.add_argument(
            "instance",
            nargs="?",
            metavar="INSTANCE",
            help="name or configuration file (default: the only one there is)",
        )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="as given to `run`")
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="as given to `run`")


def find(args: argparse.Namespace) -> Place | None:
    """The instance that is meant; None after a sentence on stderr when there is none."""
    from vllm_supervisor.daemon.locate import UnknownInstanceError, locate, names

    wanted = args.instance
    if wanted is None:
        known = names()
        if len(known) != 1:
            which = f"say which of {', '.join(known)}" if known else "no instance is configured here; `init` writes one"
            print(f"vllm-supervisor {args.verb}: {which}", file=sys.stderr)
            return None
        wanted = known[0]
    try:
        return locate(wanted, state_dir=args.state_dir, runtime_dir=args.runtime_dir)
    except UnknownInstanceError as error:
        print(f"vllm-supervisor {args.verb}: {error}", file=sys.stderr)
        return None


def start_with(place: Place) -> str:
    """The command that starts an instance on this machine."""
    from vllm_supervisor.adapters.systemctl import runs
    from vllm_supervisor.daemon.locate import SYSTEM_CONFIG

    if runs() and place.config_path.parent == SYSTEM_CONFIG:
        return f"systemctl start {_unit_of(place)}"
    return f"vllm-supervisor run --config {place.config_path}"


def _unit_of(place: Place) -> str:
    from vllm_supervisor.config.load import holder_of

    if place.name in {"kimi", "kimi-weights"}:
        return place.name
    whose = holder_of(place.config_path)
    return f"vllm-weights@{whose.stem}" if whose is not None else f"vllm@{place.name}"


def denied(verb: str, problems: Iterable[Problem]) -> bool:
    """Whether a part of the configuration may not be read by us; then a sentence on stderr says who may."""
    closed = next((problem.file for problem in problems if problem.denied), "")
    if closed:
        print(f"vllm-supervisor {verb}: {closed} may not be read by you: {WHO}", file=sys.stderr)
    return bool(closed)


def read(args: argparse.Namespace, place: Place) -> Instance | int:
    """The configuration at a place; an exit code after its problems on stderr, a line each."""
    from vllm_supervisor.daemon.instance import read_instance

    instance = read_instance(place.config_path, state_dir=args.state_dir, runtime_dir=args.runtime_dir)
    if isinstance(instance, list):
        if denied(args.verb, instance):
            return NOPERM
        for problem in instance:
            print(problem, file=sys.stderr)
        return ExitCode.PERMANENT
    return instance


def reads_weights(instance: Instance) -> Instance:
    """The instance whose start reads the weights from the disk: itself, or the one that holds them for it."""
    from vllm_supervisor.daemon.instance import read_instance

    if not instance.settings.weights.held:
        return instance
    holder = read_instance(instance.config_path, holds_weights=True)
    return instance if isinstance(holder, list) else holder
