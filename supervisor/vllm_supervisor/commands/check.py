"""`vllm-supervisor check`: say in two seconds what would fail in nine minutes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.causes import REASONS
from vllm_supervisor.core.check.finding import Finding, Level, grouped
from vllm_supervisor.core.exits import NOPERM, ExitCode, exit_code

from .places import denied

if TYPE_CHECKING:
    from vllm_supervisor.config import Problem
    from vllm_supervisor.daemon.instance import Instance

SERVICE_USER = "vllm"
"""The user of the units (sysusers.d); asked for when root checks an instance of the system."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "check",
        help="what would keep an instance from starting, without starting it",
        description="Looks at configuration, engine, checkpoint, GPUs and machine, and names what would fail. "
        "Ends with 0 when nothing is refused.",
        epilog="Exit codes: 0 nothing is refused, else that of the first refusal (69, 75, 78); 64 usage or no such "
        "instance, 77 only root and the service's user may read the configuration.",
    )
    parser.add_argument("instance", metavar="INSTANCE", nargs="?", help="name or configuration file")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a configuration file instead of an instance")
    parser.add_argument("--user", metavar="NAME", help=f"answer for this user (root, for an instance: {SERVICE_USER})")
    parser.add_argument(
        "--refresh-flags", action="store_true", help="ask the engine itself for its options; takes up to a minute"
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="a line for each thing that could not be looked at, instead of one for all",
    )
    parser.add_argument("--json", action="store_true", help="print an object for scripts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; the exit code is that of the first refusal."""
    from vllm_supervisor.daemon.instance import read_instance
    from vllm_supervisor.daemon.locate import UnknownInstanceError, locate

    if (args.instance is None) == (args.config is None):
        sys.stderr.write("vllm-supervisor check: name an INSTANCE, or a file with --config FILE\n")
        return ExitCode.USAGE
    try:
        path = args.config or locate(args.instance).config_path
    except UnknownInstanceError as error:
        sys.stderr.write(f"vllm-supervisor check: {error}\n")
        return ExitCode.USAGE
    instance = read_instance(path.absolute())
    if isinstance(instance, list) and denied("check", instance):
        return NOPERM
    found = _configuration(instance) if isinstance(instance, list) else _check(instance, args)
    if isinstance(found, str):
        sys.stderr.write(f"vllm-supervisor check: {found}\n")
        return ExitCode.USAGE
    _print(found, _notes(instance), as_json=args.json, verbose=args.verbose)
    refusal = next((finding for finding in found if finding.level is Level.REFUSE), None)
    return exit_code(REASONS[refusal.reason]) if refusal else ExitCode.OK


def _configuration(problems: list[Problem]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            Level.REFUSE,
            "configuration",
            "configuration-invalid",
            f"{problem.file}: {problem.key}".removesuffix(": "),
            problem.message,
        )
        for problem in problems
    )


def _check(instance: Instance, args: argparse.Namespace) -> tuple[Finding, ...] | str:
    from vllm_supervisor.adapters.engine_info import refresh_flags
    from vllm_supervisor.adapters.nvml_once import read_once
    from vllm_supervisor.daemon.neighbours import held_seen, neighbours_of, view_of
    from vllm_supervisor.daemon.node import doubts
    from vllm_supervisor.daemon.preflight import gather_and_check

    user = args.user or _service_user(instance)
    if user is not None and not _exists(user):
        return f"there is no user {user}; name the service's user with --user"
    view = view_of(instance)
    cache = instance.state_dir
    if args.refresh_flags and refresh_flags(view.command, dict(os.environ) | view.env, cache) is None:
        sys.stderr.write("vllm-supervisor check: the engine did not list its options; its sources are read instead\n")
    gpus = read_once() if view.device == "cuda" else None
    found = gather_and_check(
        view, gpus, user, flags_cache=cache, neighbours=neighbours_of(instance), held=held_seen(instance)
    )
    return (*found, *doubts(instance, os.environ))


def _service_user(instance: Instance) -> str | None:
    """Root asks for the service, not for itself, where there is a service user."""
    from vllm_supervisor.daemon.locate import SYSTEM_CONFIG

    system = instance.config_path.parent == SYSTEM_CONFIG
    return SERVICE_USER if system and os.geteuid() == 0 and _exists(SERVICE_USER) else None


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except (KeyError, ValueError):
        return False
    return True


def _notes(instance: Instance | list[Problem]) -> list[str]:
    """What a setting costs and rules out, which speaks against no start."""
    from vllm_supervisor.core.held import remarks

    held = not isinstance(instance, list) and instance.settings.weights.held
    return remarks(None) if held else []


def _print(found: tuple[Finding, ...], notes: list[str], *, as_json: bool, verbose: bool) -> None:
    refused = sum(finding.level is Level.REFUSE for finding in found)
    if as_json:
        listed = [dataclasses.asdict(finding) for finding in found]
        document = {"ok": not refused, "findings": listed, "notes": notes}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    shown = found if verbose else grouped(found)
    for finding in shown:
        text = f"{finding.level:<6}  {finding.check}: {finding.seen}\n        {finding.remedy}\n"
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())
    for note in notes:
        sys.stdout.write(f"note    {note}\n")
    warned = len(shown) - refused
    sys.stdout.write(f"{refused} refused, {warned} warned\n" if found else "nothing speaks against a start\n")
