"""`explain`: what went wrong in a log, in one sentence with its evidence.

Reads a file (also `.gz`), standard input, or the journal of a systemd unit together with the kernel's
lines of the same boot, and applies the classifier that a running supervisor applies too.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_supervisor.core.causes import Cause, CauseClass
from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.lines import strip_ansi
from vllm_supervisor.core.splitter import Splitter
from vllm_supervisor.core.whole_log import NoLog, WholeLog

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

_CHUNK: Final = 1 << 16
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@\-]{1,250}")
_FILE_LIKE: Final = (".log", ".txt", ".gz", ".out", ".err")
_COLOURS: Final = {
    CauseClass.PERMANENT: "31;1",
    CauseClass.TRANSIENT: "33;1",
    CauseClass.HARDWARE: "35;1",
    CauseClass.NONE: "32;1",
}
_SHOWN: Final = 300
"""Characters of a line that is quoted in a sentence."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class UnreadableError(Exception):
    """The log cannot be read; the text says why and what to do."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the verb and its arguments.

    Args:
        subparsers: Where the command line collects its verbs.
    """
    parser = subparsers.add_parser(
        "explain",
        help="say why a start failed, from its log",
        description=__doc__,
        epilog="Exit codes: 0 the log was read, whatever it says, 64 it cannot be read, is empty or not an engine's.",
    )
    parser.add_argument(
        "source", metavar="FILE|UNIT|-", help="a log file (also .gz), a systemd unit, or - (standard input)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Explain the log that the arguments name.

    Args:
        args: `source` and `json`.

    Returns:
        0 once the log could be read, whatever it says; 64 when it could not, or holds nothing of an engine.
    """
    try:
        cause = _cause(args.source)
    except UnreadableError as problem:
        sys.stderr.write(f"vllm-supervisor explain: {problem}\n")
        return int(ExitCode.USAGE)
    text = as_json(cause) if args.json else as_text(cause, colour=_wants_colour())
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    return int(ExitCode.OK)


def _cause(source: str) -> Cause:
    found = explain(_chunks(source))
    if isinstance(found, NoLog):
        raise UnreadableError(_no_log(source, found))
    return found


def explain(chunks: Iterable[bytes]) -> Cause | NoLog:
    """The cause that a log shows, or that it shows no engine.

    Args:
        chunks: The log in pieces of any size.
    """
    log, splitter = WholeLog(), Splitter()
    for chunk in chunks:
        for line in splitter.feed(chunk):
            log.feed(line)
    for line in splitter.flush():
        log.feed(line)
    return log.verdict()


def _no_log(source: str, found: NoLog) -> str:
    name = "standard input" if source == "-" else source
    if not found.lines:
        return f"there is nothing in {name}; give the output of `vllm serve`, standard error included."
    if found.own:
        return f"{name} holds no line of an engine; its supervisor's last one is: {_shown(found.own)}"
    if _is_unit(source):
        return f"the journal of this boot holds no line of an engine of {name}; the last one is: {_shown(found.last)}"
    return (
        f"{name} is not the log of an engine: it holds nothing that `vllm serve` prints; give its output, standard "
        "error included."
    )


def _shown(line: str) -> str:
    return _CONTROL.sub("�", strip_ansi(line))[:_SHOWN]


def as_json(cause: Cause) -> str:
    """One object; the evidence is the line exactly as it was printed."""
    return json.dumps(
        {
            "reason": cause.reason,
            "class": cause.cause_class.value,
            "phase": cause.phase,
            "evidence": cause.evidence,
            "advice": cause.advice,
        },
        ensure_ascii=False,
    )


def as_text(cause: Cause, *, colour: bool = False) -> str:
    """A few lines for people, without the log's own escapes.

    Args:
        cause: The verdict.
        colour: Whether the terminal bears colours.
    """
    reason = f"\x1b[{_COLOURS[cause.cause_class]}m{cause.reason}\x1b[0m" if colour else cause.reason
    kind = "" if cause.cause_class is CauseClass.NONE else f" ({cause.cause_class.value})"
    rows = [f"{reason}{kind}"]
    for name, value in (
        ("phase", cause.phase),
        ("what", cause.summary),
        ("evidence", strip_ansi(cause.evidence).strip()),
        ("advice", cause.advice),
    ):
        if value:
            rows.append(f"  {name:<9} {_CONTROL.sub('�', value)}")
    return "\n".join(rows)


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _chunks(source: str) -> Iterator[bytes]:
    if source == "-":
        return _pieces(sys.stdin.buffer)
    path = Path(source)
    if path.exists():
        return _file(path)
    if not _is_unit(source):
        raise UnreadableError(f"there is no file {source}; give a log file, a systemd unit, or - for standard input.")
    return _journal(source)


def _is_unit(source: str) -> bool:
    """Whether it can only be meant as the name of a unit."""
    if source.startswith("-") or source.endswith(_FILE_LIKE) or Path(source).exists():
        return False
    return _UNIT.fullmatch(source) is not None


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _file(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=plain) as unpacked:
                    yield from iter(lambda: unpacked.read(_CHUNK), b"")
            else:
                yield from _pieces(plain)
    except (EOFError, gzip.BadGzipFile) as problem:
        raise UnreadableError(f"{path} is a damaged gzip file ({problem}); unpack it by hand and try again.") from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise UnreadableError(f"{path} cannot be read ({reason}); give a file that this user may read.") from None


def _journal(unit: str) -> Iterator[bytes]:
    """The unit's lines of this boot, systemd's lines about it, and the kernel's where it may be read."""
    name = unit if "." in unit else f"{unit}.service"
    command = ["journalctl", "-b", "-o", "short", "--no-pager", "--all", "-q"]
    command += [f"_SYSTEMD_UNIT={name}", "+", "_PID=1", f"UNIT={name}", "+", "_TRANSPORT=kernel"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    except OSError:
        raise UnreadableError(f"there is no file {unit}, and no journalctl to ask for a unit of this name.") from None
    marker, found = name.removesuffix(".service").encode(), False
    with process:
        try:
            for chunk in _pieces(process.stdout) if process.stdout else ():
                found = found or marker in chunk or b"vllm" in chunk
                yield chunk
        finally:
            process.terminate()
    if not found:
        raise UnreadableError(
            f"there is no file {unit}, and the journal of this boot shows this user no lines of a unit {name}."
        )
