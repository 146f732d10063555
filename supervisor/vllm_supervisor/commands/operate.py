"""`operate`: takes the steps of the operation that an instance's journal holds. Not for people: systemd runs it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vllm_supervisor.core.exits import ExitCode

from .places import add_places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_supervisor.adapters.steps_journal import StepsJournal

    from .operations.runner import Doer
    from .operations.served import Served


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb, without a line in --help."""
    add_places(subparsers.add_parser("operate"), required=True)


def run(args: argparse.Namespace) -> int:
    """Take every step that is left; the exit code says what failed."""
    from vllm_supervisor.adapters.lock import acquire
    from vllm_supervisor.adapters.steps_journal import JournalError, StepsJournal
    from vllm_supervisor.core.operations import steps_of

    from .operations.follow import find_served
    from .operations.runner import run_steps

    it = find_served(args)
    if isinstance(it, int):
        return it
    journal = StepsJournal(it.name)
    try:
        head = journal.head()
        if head is None:
            print(f"vllm-supervisor operate: {journal.path} holds no operation", file=sys.stderr)
            return ExitCode.USAGE
        lock = acquire(journal.directory / "lock")
        if isinstance(lock, int):
            print(f"vllm-supervisor operate: pid {lock} works on {it.name} already", file=sys.stderr)
            return ExitCode.TRANSIENT
        verb, params = head["operation"], head["params"]
        return run_steps(journal, steps_of(verb, params), _doers(verb, it, journal))
    except JournalError as error:
        print(f"vllm-supervisor operate: {error}", file=sys.stderr)
        return ExitCode.BUG


def _doers(verb: str, it: Served, journal: StepsJournal) -> Mapping[str, Doer]:
    from .operations.ahead import Ahead
    from .operations.doing import Doing

    if verb == "restart":
        doing = Doing(it, journal)
        return {
            "check": doing.check,
            "ahead": Ahead(it).read,
            "restart": doing.restart,
            "wait": doing.wait,
            "smoke": doing.smoke,
        }
    if verb == "snapshot":
        from .operations.snapshotting import snapshot_doers

        return snapshot_doers(it, journal)
    from .operations.upgrading import upgrade_doers

    return upgrade_doers(it, journal)
