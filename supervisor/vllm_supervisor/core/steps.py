"""What an operation on an instance (restart, snapshot, upgrade) does next, from the record of what it did.

An operation is a row of named steps. Every beginning and end is recorded before the next thing is
done, so that whoever goes on after a kill, a lost terminal or a reboot decides from the record
alone. Whatever fails, the steps that bring the service back are still taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

MAX_TRIES = 4
"""So often is a step begun that was interrupted each time; then it counts as failed."""


class When(StrEnum):
    """When a step is taken."""

    ALL_WELL = "all-well"
    ALWAYS = "always"
    AFTER_FAILURE = "after-failure"


class Outcome(IntEnum):
    """The exit codes of operations: 0, or what failed. They lie below those of the daemon."""

    DONE = 0
    REFUSED = 10
    PREPARE_FAILED = 11
    STOP_FAILED = 12
    GPUS_HELD = 13
    SYNC_FAILED = 14
    MANIFEST_FAILED = 15
    COMMAND_FAILED = 16
    SMOKE_WRONG = 17
    ROLLED_BACK = 18
    DOWN = 20


MEANINGS: Mapping[Outcome, str] = {
    Outcome.DONE: "done",
    Outcome.REFUSED: "the new configuration was refused; nothing was touched",
    Outcome.PREPARE_FAILED: "the preparation failed (a download, an installation); nothing was touched",
    Outcome.STOP_FAILED: "the service could not be stopped",
    Outcome.GPUS_HELD: "something still held the GPUs after the stop",
    Outcome.SYNC_FAILED: "the file systems could not be synced",
    Outcome.MANIFEST_FAILED: "the manifest could not be written",
    Outcome.COMMAND_FAILED: "the given command failed or was killed",
    Outcome.SMOKE_WRONG: "the service is up and its answer is wrong",
    Outcome.ROLLED_BACK: "the new version failed; the old one serves again",
    Outcome.DOWN: "the service did not come back",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an operation.

    Attributes:
        name: Its name in the record.
        title: What it does, for people.
        code: The exit code of the operation when it fails.
        when: Whether it is taken after a failure, too.
        repeatable: It may be taken again after an interruption; otherwise it counts as failed then.
        after: Taken only when this step was begun; empty for always.
    """

    name: str
    title: str
    code: Outcome
    when: When = When.ALL_WELL
    repeatable: bool = True
    after: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal about a step: `begun`, `done`, `failed` or `skipped`, with a sentence."""

    step: str
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Take:
    """Take this step now; `again` after an interruption."""

    step: Step
    again: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Record this of a step, without taking it."""

    step: Step
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left: the exit code, and a sentence."""

    code: Outcome
    sentence: str


def decide(steps: Sequence[Step], records: Sequence[Record]) -> Take | Note | Finish:
    """What is next.

    Args:
        steps: The operation.
        records: What was recorded so far, oldest first.
    """
    last: dict[str, Record] = {}
    begun: dict[str, int] = {}
    for record in records:
        last[record.step] = record
        begun[record.step] = begun.get(record.step, 0) + (record.state == "begun")
    failed: Step | None = None
    for step in steps:
        seen = last.get(step.name)
        if seen is None:
            if _wanted(step, begun, failed=failed is not None):
                return Take(step)
            return Note(step, "skipped", "")
        if seen.state == "begun":
            if not step.repeatable:
                return Note(step, "failed", "it was interrupted")
            if begun[step.name] >= MAX_TRIES:
                return Note(step, "failed", f"it was interrupted {MAX_TRIES} times")
            return Take(step, again=True)
        if seen.state == "failed":
            failed = failed or step
    return _finish(steps, last)


def _wanted(step: Step, begun: Mapping[str, int], *, failed: bool) -> bool:
    if step.after and not begun.get(step.after):
        return False
    match step.when:
        case When.ALL_WELL:
            return not failed
        case When.ALWAYS:
            return True
        case When.AFTER_FAILURE:
            return failed


def _finish(steps: Sequence[Step], last: Mapping[str, Record]) -> Finish:
    """The first failure decides, unless the service is down: that is worse than whatever led to it."""
    failed = [step for step in steps if last[step.name].state == "failed"]
    if not failed:
        return Finish(Outcome.DONE, "all steps are done")
    rescued = any(last[step.name].state == "done" for step in steps if step.when is When.AFTER_FAILURE)
    down = [step for step in failed if step.code is Outcome.DOWN]
    if rescued and not any(step.when is When.AFTER_FAILURE for step in failed):
        return Finish(Outcome.ROLLED_BACK, _said(failed[0], last))
    worst = down[0] if down else failed[0]
    others = [step for step in failed if step is not worst]
    return Finish(worst.code, "; ".join(_said(step, last) for step in [worst, *others]))


def _said(step: Step, last: Mapping[str, Record]) -> str:
    text = last[step.name].text
    return f"{step.name} failed: {text}" if text else f"{step.name} failed"
