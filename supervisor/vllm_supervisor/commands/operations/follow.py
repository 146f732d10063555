"""Begins an operation in a unit of its own and shows what it does; a lost terminal loses only the show."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters import systemctl
from vllm_supervisor.adapters.steps_journal import JournalError, StepsJournal
from vllm_supervisor.core.exits import NOPERM, ExitCode
from vllm_supervisor.core.operations import UNIT_NAME, by_hand, changed, steps_of, transient_unit
from vllm_supervisor.core.plain import printable

from .served import REFUSED, NoSystemdError, Served, StepError, may_act, served

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 0.1
GONE_S = 5.0
"""systemd begins a killed operation again within a second; one that is gone for longer does not come back."""


def add_follow(parser: argparse.ArgumentParser) -> None:
    """Declare what every operation takes."""
    parser.add_argument("--resume", action="store_true", help="follow the one that runs, or go on with a broken one")
    parser.add_argument(
        "--abandon", action="store_true", help="give up a broken one (nothing is undone) and begin anew"
    )


def find_served(args: argparse.Namespace) -> Served | int:
    """The instance, or an exit code after a sentence."""
    from ..places import find  # noqa: TID252 - a neighbour

    place = find(args)
    if place is None:
        return ExitCode.USAGE
    if not UNIT_NAME.fullmatch(place.name):
        return _said(args.verb, f"{place.name!r} cannot be the name of a unit", ExitCode.USAGE)
    try:
        it = served(place.name, place.config_path)
    except NoSystemdError as error:
        remedy = by_hand(args.verb, str(place.config_path), getattr(args, "vllm", None) or "")
        return _said(args.verb, f"{error}, and {args.verb} works through it; by hand: {remedy}", REFUSED)
    except StepError as error:
        return _said(args.verb, f"{place.name}: {error}", ExitCode.USAGE)
    elsewhere = _elsewhere(args, it)
    return _said(args.verb, f"refused: {elsewhere}", REFUSED) if elsewhere else it


def _elsewhere(args: argparse.Namespace, it: Served) -> str:
    try:
        return it.instance().not_here(args.verb, stops=not getattr(args, "no_stop", False))
    except StepError:
        # The verb itself says what is wrong with the configuration.
        return ""


def operate(args: argparse.Namespace, it: Served, params: Mapping[str, Any], before: Callable[[], int]) -> int:
    """Begin (or resume) the operation of a verb, and follow it.

    Args:
        args: Its arguments: `verb`, `resume`, `abandon`.
        it: The instance.
        params: What is recorded for the one who does it.
        before: Asked before anything begins; an exit code other than 0 refuses.
    """
    refused = may_act(args.verb)
    if refused:
        return _said(args.verb, refused, NOPERM)
    journal, unit = StepsJournal(it.name), transient_unit(it.name)
    try:
        head, finished, running = journal.head(), journal.finished(), _running(unit)
        if args.resume:
            return _resume(args.verb, it, journal, head, running=running)
        if running or (head and not finished and not args.abandon):
            verb = head["operation"] if head else "operation"
            how = "is under way" if running else "was begun and has not ended"
            more = "" if running else ", or give it up with --abandon"
            hint = f"`vllm-supervisor {verb} {it.name} --resume` follows it{more}"
            return _said(args.verb, f"{_one(verb)} of {it.name} {how}; {hint}", ExitCode.TRANSIENT)
        code = before()
        if code:
            return code
        journal.begin(args.verb, dict(params), _caller())
        _launch(args.verb, it.name, unit)
        return follow(args.verb, it.name, journal)
    except (JournalError, systemctl.SystemctlError) as error:
        return _said(args.verb, str(error), ExitCode.BUG)


def _resume(verb: str, it: Served, journal: StepsJournal, head: Mapping[str, Any] | None, *, running: bool) -> int:
    if head is None or head["operation"] != verb:
        known = f"the last operation on it was {_one(head['operation'])}" if head else "there was no operation on it"
        return _said(verb, f"there is no {verb} of {it.name} to resume; {known}", ExitCode.USAGE)
    if not running and journal.finished() is None:
        _launch(verb, it.name, transient_unit(it.name))
    return follow(verb, it.name, journal)


def _launch(verb: str, name: str, unit: str) -> None:
    command = [sys.executable, "-P", "-m", "vllm_supervisor", "operate", name]
    systemctl.run_transient(unit, f"{verb} of the vLLM instance {name}", command)


def follow(verb: str, name: str, journal: StepsJournal) -> int:
    """Show an operation until its end; its exit code."""
    unit, seen, missed = transient_unit(name), 0, 0.0
    head = journal.head() or {"params": {}}
    titles = {step.name: step.title for step in steps_of(verb, head["params"])}
    shower = _Shower(titles)
    try:
        while True:
            lines = journal.lines()
            for line in lines[seen:]:
                if "finished" in line:
                    print(f"{name}: {verb}: {printable(line['sentence'])}", file=sys.stderr)
                    return int(line["finished"])
                shower.show(line)
            seen = len(lines)
            missed = 0.0 if _running(unit) else missed + EVERY_S
            if missed > GONE_S:
                return _said(verb, f"{unit} ended in the middle; see `journalctl -u {unit}`, then --resume", 70)
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        hint = f"it goes on in {unit}; `vllm-supervisor {verb} {name} --resume` follows it again"
        return _said(verb, hint, 130)


class _Shower:
    """A line for every step's begin and end; between them what is new."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._said: list[str] = []

    def show(self, line: Mapping[str, Any]) -> None:
        """One line of the record."""
        text = printable(str(line.get("text") or line.get("say") or ""))
        if "say" in line:
            if changed(text, self._said):
                print(f"           {text}", file=sys.stderr)
            self._said.append(text)
        elif line.get("state") == "begun":
            self._said = []
            again = f" ({text})" if text else ""
            print(f"{line['step']:<10} {self._titles.get(line['step'], '')}{again}", file=sys.stderr)
        elif line.get("state") in {"done", "failed"}:
            print(f"{line['step']:<10} {line['state']}{f': {text}' if text else ''}", file=sys.stderr)
        sys.stderr.flush()


def _running(unit: str) -> bool:
    return systemctl.show(unit, "ActiveState").get("ActiveState") in {"active", "activating", "deactivating"}


def _one(verb: str) -> str:
    return f"an {verb}" if verb[0] in "aeiou" else f"a {verb}"


def _caller() -> str:
    return os.environ.get("SUDO_USER") or f"uid {os.getuid()}"


def _said(verb: str, sentence: str, code: int) -> int:
    print(f"vllm-supervisor {verb}: {sentence}", file=sys.stderr)
    return code
