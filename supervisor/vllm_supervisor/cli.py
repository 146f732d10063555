"""The command line: verbs in `commands`, exit codes in `core.exits`, no traceback for an operator."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from vllm_supervisor import __version__
from vllm_supervisor.core.exits import NOPERM, ExitCode

VERBS = (
    "init",
    "check",
    "plan",
    "overlay",
    "provision",
    "fetch",
    "run",
    "reload",
    "status",
    "wait",
    "smoke",
    "history",
    "incident",
    "explain",
    "replay",
    "warm",
    "loaders",
    "restart",
    "snapshot",
    "upgrade",
    "completion",
)
"""In the order in which an operator meets them."""

INTERNAL = ("trial", "operate")
"""What a supervisor and an operation call of themselves: no operator is shown them."""

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a write to standard output ends with when its disk is full, or its terminal gone."""


class Parser(argparse.ArgumentParser):
    """Errors in one sentence, with the exit code of sysexits.h."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit 64."""
        self.exit(ExitCode.USAGE, f"{self.prog}: {_plain(message)}; see `{self.prog} --help`\n")


_WORDS = (
    (re.compile(r"the following arguments are required: (.+)"), r"\1 must be given"),
    (re.compile(r"argument (\S+): invalid int value: (.+)"), r"\1 takes a whole number, not \2"),
    (re.compile(r"argument (\S+): invalid float value: (.+)"), r"\1 takes a number, not \2"),
    (re.compile(r"argument (\S+): invalid choice: (.+) \(choose from (.+)\)"), r"\1 takes one of \3, not \2"),
    (re.compile(r"argument (\S+): expected one argument"), r"\1 takes a value"),
    (re.compile(r"argument (\S+): ignored explicit argument (.+)"), r"\1 takes no value, not \2"),
    (re.compile(r"argument (\S+): not allowed with argument (\S+)"), r"\1 and \2 exclude each other"),
    (re.compile(r"one of the arguments (.+) is required"), r"one of \1 must be given"),
)
"""argparse's sentences, and ours. Its own differ from release to release."""


def _plain(message: str) -> str:
    for pattern, words in _WORDS:
        if found := pattern.fullmatch(message):
            return found.expand(words).replace("'", "") if "one of" in words else found.expand(words)
    return message


def parser(internal: str = "") -> argparse.ArgumentParser:
    """The whole command line, with one of the internal verbs where that is called."""
    top = Parser(
        prog="vllm-supervisor",
        description="Runs `vllm serve` as a systemd service: ready when it answers, failed with a cause, "
        "gone when stopped.",
        epilog="Exit codes: 0 ok, 64 usage, 69 hardware, 70 bug, 75 transient, 76 gave up, 77 not allowed, 78 "
        "permanent; each verb's --help has its own.",
    )
    top.add_argument("--version", action="version", version=f"vllm-supervisor {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb in (*VERBS, *((internal,) if internal in INTERNAL else ())):
        try:
            module = importlib.import_module(f"vllm_supervisor.commands.{verb}")
        except ModuleNotFoundError as error:
            if error.name == f"vllm_supervisor.commands.{verb}":
                continue
            raise
        module.add_parser(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    # Behind `--` stands a command for `snapshot`: none of its options is ours, wherever ours stand.
    mark = given.index("--") if given[:1] == ["snapshot"] and "--" in given else len(given)
    if sys.stdout is None:  # closed by the caller (`>&-`): nobody wants to read it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    first = given[0] if given else ""
    if first and first[0] != "-" and first not in (*VERBS, *INTERNAL):
        return _unknown_verb(first)
    args, unknown = parser(first).parse_known_args(given[:mark])
    if unknown:
        verb = f"vllm-supervisor {args.verb}"
        print(f"{verb}: {' '.join(unknown)} means nothing here; see `{verb} --help`", file=sys.stderr)
        return ExitCode.USAGE
    args.behind = given[mark + 1 :]
    module = importlib.import_module(f"vllm_supervisor.commands.{args.verb}")
    try:
        code = int(module.run(args))
        if args.verb != "run":  # the code of a service says how it ended, whoever reads its output
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) is gone; say nothing more.
        _to_nowhere()
        return ExitCode.OK
    except Exception as error:
        if os.environ.get("VSUP_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE and args.verb != "run":
            _to_nowhere()
            print(f"vllm-supervisor {args.verb}: its output cannot be written: {error.strerror}", file=sys.stderr)
            return os.EX_IOERR
        if isinstance(error, PermissionError) and error.filename and args.verb != "run":
            closed = f"{error.filename} is closed to you: run as root or as its owner"
            print(f"vllm-supervisor {args.verb}: {closed}", file=sys.stderr)
            return NOPERM
        print(
            f"vllm-supervisor: a bug: {type(error).__name__}: {error}; set VSUP_DEBUG=1 to see where, and report it",
            file=sys.stderr,
        )
        return ExitCode.BUG
    return code


def _unknown_verb(given: str) -> int:
    like = difflib.get_close_matches(given, VERBS, n=1)
    hint = f"did you mean `{like[0]}`?" if like else "`vllm-supervisor --help` lists them"
    print(f"vllm-supervisor: there is no verb {given!r}; {hint}", file=sys.stderr)
    return ExitCode.USAGE


def _to_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
