"""`restart`: check first, then drain, stop, start, wait and ask; a refusal comes before the outage."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .places import add_places

if TYPE_CHECKING:
    from .operations.served import Served

HELP = "check the new configuration, then restart an instance and see that it answers"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    from .operations.follow import add_follow

    parser = subparsers.add_parser(
        "restart",
        help=HELP,
        description="Plans and checks the configuration as it is now and refuses what would not start, before anything "
        "is stopped. Then drains, restarts through systemd, waits and asks the smoke question. It runs in a unit of "
        "its own: a lost terminal does not end it. Only root may; --dry-run is for the service's user as well.",
        epilog="Exit codes: 0 restarted and right, 10 refused before the outage, 17 up with a wrong answer, 20 down, "
        "75 another operation is under way, 77 not root, 64 no such instance.",
    )
    add_places(parser, required=True)
    parser.add_argument("--dry-run", action="store_true", help="only plan, check and say the outage to expect")
    add_follow(parser)


def run(args: argparse.Namespace) -> int:
    """Restart it; the exit code says what failed."""
    from .operations.follow import find_served, operate

    it = find_served(args)
    if isinstance(it, int):
        return it
    if args.dry_run:
        return foresee(args.verb, it)
    return operate(args, it, {}, lambda: foresee(args.verb, it))


def foresee(verb: str, it: Served, command: str | None = None) -> int:
    """Print plan, findings and the outage to expect; 0 when nothing is refused, 77 when we may not look, else 10."""
    from vllm_supervisor.core.check.finding import Level
    from vllm_supervisor.core.exits import NOPERM
    from vllm_supervisor.core.operations import expected_outage

    from .operations.served import REFUSED, StepError, check, plan_lines

    try:
        found, view, seen = check(it, command, alone=verb == "snapshot")
        drain_s = it.instance().settings.stop.drain_s
        state = it.show("ActiveState").get("ActiveState", "unknown")
    except StepError as error:
        if error.denied:
            print(f"vllm-supervisor {verb}: {error}", file=sys.stderr)
            return NOPERM
        print(f"vllm-supervisor {verb}: refused: {error}", file=sys.stderr)
        return REFUSED
    for line in plan_lines(view, seen):
        print(line)
    for finding in found:
        print(finding)
    refused = sum(finding.level is Level.REFUSE for finding in found)
    if refused:
        print(
            f"vllm-supervisor {verb}: refused before the outage: {it.unit} stays {state}; correct the "
            f"{refused} finding{'s' if refused > 1 else ''} above",
            file=sys.stderr,
        )
        return REFUSED
    print(f"nothing speaks against a start of {it.unit}")
    print(f"outage: {expected_outage(it.history(), drain_s)}")
    return 0
