"""`replay`: run a recording of `run --record` through the core again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_supervisor.core.effects import Exit
from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.recording import from_line
from vllm_supervisor.core.state import initial
from vllm_supervisor.core.status import sentence
from vllm_supervisor.core.step import step

_WANTED = "give a file that `vllm-supervisor run --record FILE` wrote"
HELP = "run a recording through the decisions again and show what they would be"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "replay", help=HELP, description=HELP.capitalize() + ".", epilog="Exit codes: 0 shown, 64 FILE is no recording."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what `run --record FILE` wrote")


def run(args: argparse.Namespace) -> int:
    """Print each phase and the end; 64 when the file is no recording."""
    try:
        lines = args.file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        return _refused(args.file, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _refused(args.file, f"is no text; {_WANTED}")
    state = None
    began = 0.0
    told = None
    for number, line in enumerate(lines, 1):
        try:
            at, value = from_line(line)
        except ValueError as error:
            return _refused(args.file, f"line {number} is {error}; {_WANTED}")
        if isinstance(value, Policy):
            state, began, told = initial(value, at), at, None
            continue
        if state is None:
            return _refused(
                args.file, f"line {number} comes before the policy with which a recording begins; {_WANTED}"
            )
        state, effects = step(state, value, at)  # type: ignore[arg-type]
        if state.phase is not told:
            told = state.phase
            print(f"{at - began:9.3f} s  {state.phase:<18} {sentence(state, at)}")
        for effect in effects:
            if isinstance(effect, Exit):
                print(f"{at - began:9.3f} s  exit {int(effect.code)}: {effect.sentence}")
    if state is None:
        return _refused(args.file, f"is empty; {_WANTED}")
    return ExitCode.OK


def _refused(file: Path, why: str) -> int:
    print(f"vllm-supervisor replay: {file} {why}", file=sys.stderr)
    return ExitCode.USAGE
