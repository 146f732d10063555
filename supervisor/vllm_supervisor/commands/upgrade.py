"""`upgrade`: another version of vLLM beside the present one, checked, switched to, and left again when it fails."""

from __future__ import annotations

import argparse
import shlex
import sys

from vllm_supervisor.core.exits import ExitCode

from .places import add_places

HELP = "install another version of vLLM beside the present one and switch to it; back when it fails"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    from .operations.follow import add_follow

    parser = subparsers.add_parser(
        "upgrade",
        help=HELP,
        description="Makes an environment for the version beside the others (/opt/vllm-VERSION; nothing is stopped "
        "for that), checks the configuration with it, turns the link /opt/vllm, restarts, waits and asks the smoke "
        "question. When the new version does not start or answers wrongly, the link is turned back and the old one is "
        "started, unattended; the incident is kept. A version that is installed already is only switched to: this is "
        "also the way back later. Only root may; it runs in a unit of its own.",
        epilog="Exit codes: 0 the new version serves, 10 refused, 11 not installed (nothing was stopped), 18 it failed "
        "and the old one serves again, 20 down, 75 another operation is under way, 77 not root, 64 no such instance.",
    )
    add_places(parser)
    parser.add_argument("--vllm", metavar="VERSION", help="such as 0.32.0")
    parser.add_argument(
        "--python", default="/usr/bin/python3", metavar="PATH", help="for a new environment (%(default)s)"
    )
    parser.add_argument("--pip-args", default="", metavar="ARGS", help="for pip, such as '--extra-index-url URL'")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_follow(parser)


def run(args: argparse.Namespace) -> int:
    """Upgrade it; the exit code says what serves now."""
    from vllm_supervisor.adapters.environment import VERSION, current

    from .operations.follow import find_served, operate
    from .operations.served import Served, StepError
    from .operations.upgrading import link_of, place_of

    it = find_served(args)
    if not isinstance(it, Served):
        return it
    if args.resume:
        return operate(args, it, {}, lambda: 0)
    if not args.vllm or not VERSION.fullmatch(args.vllm):
        return _said(
            f"give the version with --vllm, such as --vllm 0.32.0{f', not {args.vllm!r}' if args.vllm else ''}"
        )
    try:
        link = link_of(it)
    except StepError as error:
        return _said(str(error))
    place = place_of(link, args.vllm)
    problem = "" if (place / "bin/vllm").exists() else _cannot_be_made(args)
    if problem:
        return _said(problem)

    def before() -> int:
        if current(link) == place:
            return _said(f"{link} points to {place} already; `vllm-supervisor restart {it.name}` starts it anew")
        there = (place / "bin/vllm").exists()
        print(f"{place} is there already" if there else f"vLLM {args.vllm} will be installed in {place}")
        print(f"{link} points to {current(link)} and will point to {place}")
        return 0

    if args.dry_run:
        code = before()
        return code or (_foresee(it, str(place / "bin/vllm")) if (place / "bin/vllm").exists() else ExitCode.OK)
    params = {"version": args.vllm, "link": str(link), "python": args.python, "pip_args": args.pip_args}
    return operate(args, it, params, before)


def _cannot_be_made(args: argparse.Namespace) -> str:
    from vllm_supervisor.adapters.environment import interpreter_problem

    problem = interpreter_problem(args.python)
    if problem:
        return f"--python: {problem}; give the path of a Python 3, such as /usr/bin/python3"
    try:
        shlex.split(args.pip_args)
    except ValueError:
        return f"--pip-args: a quotation mark in {args.pip_args!r} has no other one"
    return ""


def _foresee(it: object, command: str) -> int:
    from .operations.served import Served
    from .restart import foresee

    assert isinstance(it, Served)  # noqa: S101 - the caller has one
    return foresee("upgrade", it, command)


def _said(sentence: str) -> int:
    print(f"vllm-supervisor upgrade: {sentence}", file=sys.stderr)
    return ExitCode.USAGE
