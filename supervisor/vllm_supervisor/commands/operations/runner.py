"""Takes the steps of an operation, recording each before and after; whoever comes after a kill goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from vllm_supervisor.adapters.steps_journal import JournalError, StepsJournal
from vllm_supervisor.core.operations import changed
from vllm_supervisor.core.steps import Finish, Note, Outcome, Step, decide

from .served import StepError

Say = Callable[[str], None]
Doer = Callable[[str, Say], str]
"""Takes a step: its name, and where to tell its progress. Returns a sentence; raises StepError."""


def run_steps(journal: StepsJournal, steps: Sequence[Step], doers: Mapping[str, Doer]) -> Outcome:
    """Take every step that is left; the exit code of the operation.

    Raises:
        JournalError: the record cannot be written, so nothing more was done.
    """
    while True:
        turn = decide(steps, journal.records())
        if isinstance(turn, Finish):
            journal.write(finished=int(turn.code), sentence=turn.sentence)
            print(turn.sentence, file=sys.stderr)
            return turn.code
        if isinstance(turn, Note):
            journal.write(step=turn.step.name, state=turn.state, text=turn.text)
            continue
        name = turn.step.name
        journal.write(step=name, state="begun", text="again, after an interruption" if turn.again else "")
        print(f"{name}: {turn.step.title}", file=sys.stderr)
        try:
            text = doers[name](name, _saying(journal))
        except StepError as error:
            _ended(journal, name, "failed", str(error))
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the service must come back
            _ended(journal, name, "failed", f"a bug: {type(error).__name__}: {error}")
        else:
            _ended(journal, name, "done", text)


def _ended(journal: StepsJournal, name: str, state: str, text: str) -> None:
    print(f"{name}: {state}{f': {text}' if text else ''}", file=sys.stderr)
    journal.write(step=name, state=state, text=text)


def _saying(journal: StepsJournal) -> Say:
    said: list[str] = []

    def say(text: str) -> None:
        if text and text not in said[-1:]:
            # The journal is for following; systemd's journal gets what is new in words.
            if changed(text, said):
                print(text, file=sys.stderr)
            said.append(text)
            journal.write(say=text)

    return say
