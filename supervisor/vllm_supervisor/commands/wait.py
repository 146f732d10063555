"""`wait`: return when an instance is ready, or has failed for good."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import NO_RESTART, NOPERM, ExitCode

from .places import add_places, find, start_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vllm_supervisor.daemon.locate import Place

HELP = "wait until an instance is ready"

TIMED_OUT = 124
"""As timeout(1) says it."""

ABSENT_S = 10.0
"""systemd starts again within a second or two; a daemon that is gone for longer does not come back."""

EVERY_S = 0.25


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "wait",
        help=HELP,
        description="Returns when an instance can answer. Waits through the retries after a transient failure.",
        epilog="Exit codes: 0 ready, 75 failed or not running (for 10 s, or at the end of --timeout), 124 it runs and "
        "is not ready after --timeout, 64 no such instance, 77 only root and the service's user may.",
    )
    add_places(parser, required=True)
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds; without it there is no limit")
    parser.add_argument("--quiet", action="store_true", help="say nothing but why it failed")


def run(args: argparse.Namespace) -> int:
    """Wait; says on stderr why it did not become ready."""
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    if args.timeout is not None and not args.timeout >= 0:
        print(f"vllm-supervisor wait: --timeout takes seconds from 0 up, not {args.timeout:g}", file=sys.stderr)
        return ExitCode.USAGE
    with _telling(quiet=args.quiet) as tell:
        code, why = _wait(place, args.timeout, tell)
    if why:
        print(f"vllm-supervisor wait: {why}", file=sys.stderr)
    return code


def _wait(place: Place, timeout_s: float | None, tell: Callable[[Mapping[str, Any]], None]) -> tuple[int, str]:
    from vllm_supervisor.core.words import duration
    from vllm_supervisor.daemon.ask import AskError, ask

    began, began_wall = time.monotonic(), time.time()
    seen_at = began
    last = ""
    while True:
        try:
            status = ask(place)
        except AskError as error:
            return NOPERM if error.denied else ExitCode.TRANSIENT, str(error)
        now = time.monotonic()
        if status["ready"]:
            return ExitCode.OK, ""
        if status["running"]:
            seen_at, last = now, str(status["status"])
            tell(status)
        elif _final(status["last"], began_wall) or now - seen_at >= ABSENT_S:
            return ExitCode.TRANSIENT, _why(place, status["last"])
        if timeout_s is not None and now - began >= timeout_s:
            if not status["running"]:
                return ExitCode.TRANSIENT, _why(place, status["last"])
            return TIMED_OUT, f"{place.name} is not ready after {duration(now - began)}: {last}"
        time.sleep(EVERY_S)


def _final(row: Mapping[str, Any] | None, since: float) -> bool:
    """Whether the last start ended while we waited, in a way after which none follows."""
    if row is None or (row.get("ended_at") or 0.0) < since:
        return False
    return row.get("exit_code") in NO_RESTART or row.get("outcome") == "stopped"


def _why(place: Place, row: Mapping[str, Any] | None) -> str:
    name = place.name
    if row is None:
        return f"{name} does not run and was never started; start it with `{start_with(place)}`"
    sentence = row.get("sentence") or row.get("reason") or "it ended without a word"
    return f"{name} does not run; its last start: {sentence}"


@contextlib.contextmanager
def _telling(*, quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Shows the progress: repainted on a terminal, a line for every phase elsewhere."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from vllm_supervisor.daemon.terminal import repainting

        with repainting(sys.stderr) as shown:
            yield shown
    else:
        told: list[str] = []

        def tell(status: Mapping[str, Any]) -> None:
            if status["phase"] not in told[-1:]:
                told.append(status["phase"])
                print(f"{status['instance']}: {status['phase']}: {status['status']}", file=sys.stderr)

        yield tell
