"""`history`: the starts of an instance, and what stands out among them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import NOPERM, ExitCode

from .places import add_places, find

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 1_000_000
"""No history has more starts (`history.keep` ends below)."""

HELP = "list the starts of an instance with their phases, outcomes and causes"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "history",
        help=HELP,
        description="Lists the starts of an instance, the newest last: when, how it ended, how long it took and why it "
        "failed. Says when a start took much longer than those before it, and in which phase; where the time of the "
        "newest one went, and how long the disk needs for the weights at least.",
        epilog="Exit codes: 0 listed, 1 the history cannot be read, 64 no such instance, 77 only root and the "
        "service's user may.",
    )
    add_places(parser)
    parser.add_argument("--last", type=int, default=20, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one object a start, with all its figures")


def run(args: argparse.Namespace) -> int:
    """List them."""
    from vllm_supervisor.core.account import of_history
    from vllm_supervisor.core.plain import HISTORY_COLUMNS, history_cells, remarks, table
    from vllm_supervisor.daemon.ask import AskError, past

    place = find(args)
    if place is None:
        return ExitCode.USAGE
    if args.last < 1:
        print(f"vllm-supervisor history: --last must be at least 1, not {args.last}", file=sys.stderr)
        return ExitCode.USAGE
    last = min(args.last, MOST)
    try:
        # Five more, for the first one shown to be compared with.
        rows = past(place, last + 5)
    except AskError as error:
        print(f"vllm-supervisor history: {error}", file=sys.stderr)
        return NOPERM if error.denied else 1
    shown = rows[-last:]
    if args.json:
        for row in shown:
            print(json.dumps({name: value for name, value in row.items() if name not in {"id", "boot_id"}}))
        return ExitCode.OK
    if not shown:
        print(f"{place.name} was never started", file=sys.stderr)
        return ExitCode.OK
    cells = [history_cells(row, _when(row["began_at"])) for row in shown]
    if sys.stdout.isatty():
        from vllm_supervisor.daemon.terminal import print_table

        print_table(HISTORY_COLUMNS, cells, [_style(row) for row in shown])
    else:
        print("\n".join(table([HISTORY_COLUMNS, *cells])))
    _tell([*remarks(rows, len(shown)), *of_history(rows, len(shown))])
    return ExitCode.OK


def _tell(sentences: Sequence[str]) -> None:
    if sentences:
        print("\n" + "\n".join(sentences))


def _style(row: dict[str, Any]) -> str:
    if row["outcome"] == "failed":
        return "red"
    return "" if row["outcome"] else "yellow"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
