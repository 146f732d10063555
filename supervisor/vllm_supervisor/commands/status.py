"""`status`: where an instance stands, from its daemon, or from its history when that is gone."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import NOPERM, ExitCode

from .places import add_places, find

if TYPE_CHECKING:
    from vllm_supervisor.daemon.locate import Place

HELP = "show where an instance stands"

NOT_READY = 3
"""systemctl's own code of `status` for what does not run; here also for what is not ready."""

EVERY_S = 1.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "status",
        help=HELP,
        description="Shows where an instance stands: phase, progress, GPUs, tokens a second. When its supervisor does "
        "not run, shows how the last start ended. Without a name, where there are several instances, shows all of them "
        "in one table.",
        epilog="Exit codes: 0 ready (all of them), 3 not ready or not running, 64 no such instance, 77 only root "
        "and the service's user may.",
    )
    add_places(parser)
    parser.add_argument("--watch", action="store_true", help="show it again every second until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(args: argparse.Namespace) -> int:
    """Show it, once or again and again."""
    if args.instance is None and _several():
        return _all(args)
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    if not args.watch:
        return _show(place, as_json=args.json)
    if sys.stdout.isatty() and not args.json:
        return _watch(place)
    while True:
        _show(place, as_json=args.json)
        sys.stdout.flush()
        time.sleep(EVERY_S)


def _several() -> bool:
    from vllm_supervisor.daemon.locate import names

    return len(names()) > 1


def _all(args: argparse.Namespace) -> int:
    """Every instance of the machine in one table."""
    from vllm_supervisor.core.roster import all_ready, roster_lines
    from vllm_supervisor.daemon.roster import roster

    rows: list[dict[str, Any]] = []
    screen = args.watch and sys.stdout.isatty() and not args.json
    try:
        while True:
            rows = roster()
            lines = [json.dumps({"instances": rows})] if args.json else roster_lines(rows, time.time())
            # From the top left corner, each line cleared to its end, and everything below.
            text = (
                "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
                if screen
                else "\n".join(lines) + "\n"
            )
            sys.stdout.write(text)
            sys.stdout.flush()
            if not args.watch:
                break
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        pass
    return ExitCode.OK if all_ready(rows) else NOT_READY


def _show(place: Place, *, as_json: bool) -> int:
    from vllm_supervisor.core.plain import status_lines
    from vllm_supervisor.daemon.ask import AskError, ask

    try:
        status = ask(place)
    except AskError as error:
        print(f"vllm-supervisor status: {error}", file=sys.stderr)
        return NOPERM if error.denied else NOT_READY
    if as_json:
        print(json.dumps(status))
    elif sys.stdout.isatty():
        from vllm_supervisor.daemon.terminal import show

        show(status)
    else:
        print("\n".join(status_lines(status, time.time())))
    return ExitCode.OK if status["ready"] else NOT_READY


def _watch(place: Place) -> int:
    from vllm_supervisor.daemon.ask import AskError, ask
    from vllm_supervisor.daemon.terminal import watching

    ready = False
    with watching() as shown:
        try:
            while True:
                try:
                    status = ask(place)
                    ready = bool(status["ready"])
                    shown(status)
                except AskError as error:
                    ready = False
                    shown(str(error))
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            return ExitCode.OK if ready else NOT_READY
