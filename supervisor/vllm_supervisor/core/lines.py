"""One physical line of the engine's output: peeling the prefixes off.

Formats differ by version (vLLM 0.10 to 0.33) and by logger, and they mix in one stream: vLLM's own
records with a process prefix in front, uvicorn's bare lines, JSON, FlashInfer's logger, progress
bars, tracebacks, C++ and kernel lines, all of it once more behind a journal's prefix. This module
says who printed a line and what it says; it never says what that means.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Final, NamedTuple


class Source(StrEnum):
    """Which logger printed a line, as far as its shape tells."""

    VLLM = "vllm"
    UVICORN = "uvicorn"
    FLASHINFER = "flashinfer"
    JSON = "json"
    RUST = "rust"
    KERNEL = "kernel"
    SYSTEMD = "systemd"
    BARE = "bare"


class Line(NamedTuple):
    """A line without its wrapping.

    Attributes:
        text: The line without ANSI escapes and line end.
        process: Name in the innermost process prefix (`Worker_TP3`, `EngineCore`), or None.
        pid: The pid of that prefix, or the one of the journal's.
        level: DEBUG, INFO, WARNING, ERROR, CRITICAL, or None where the line has none.
        message: What is left when every prefix is gone; its own indentation is kept.
        source: The logger.
        origin: File (`core.py`) or logger name (`uvicorn.error`) that a record names; else empty.
        detail: A traceback that a JSON record carries in a field of its own; else empty.
    """

    text: str
    process: str | None
    pid: int | None
    level: str | None
    message: str
    source: Source = Source.BARE
    origin: str = ""
    detail: str = ""


_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_JOURNAL = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,:+\-Z]{0,16})"
    r" [\w.\-]{1,64} (?P<unit>[^\s:\[\]]{1,64})(?:\[(?P<pid>\d{1,10})\])?: ",
)
_DMESG = re.compile(r"\[(?: *\d{1,12}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] (?=\S)")
_KERNEL_TEXT = re.compile(
    r"NVRM: |Out of memory: |Memory cgroup out of memory: |oom-kill:|pcieport |nvidia-nvswitch|[^ ]{1,32} invoked "
    r"oom-killer"
)
_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? "
    r"\[(?P<file>[^\]\s:]{1,120}):\d{1,6}\](?: |$)",
)
_USUAL = re.compile(
    r"(?:\((?P<name>[A-Za-z][\w=\-]{0,60}) pid=(?P<pid>\d{1,10})\) )?"
    r"(?P<level>INFO|WARNING|ERROR|DEBUG|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d "
    r"\[(?P<file>[^\]\s:]{1,120}):\d{1,6}\](?: |$)",
)
_DATE = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \[")
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w =\-]{0,60}?) pid=(?P<pid>\d{1,10})(?:, ip=[^)\s]{1,60})?\) ?")
_UVICORN = re.compile(r"(?P<level>DEBUG|TRACE|INFO|WARNING|ERROR|CRITICAL): {1,9}(?=\S)")
_FLASHINFER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (?P<level>[A-Z]{4,8}) - (?P<file>[^\s:]{1,80}):\d{1,6} - [\w.]{1,80}: ",
)
_RUST = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]{0,10}(?:Z|[+\-]\d\d:?\d\d) {1,4}(?P<level>TRACE|DEBUG|INFO|WARN|ERROR) "
    r"(?P<rest>.*)",
)
_RUST_TARGET = re.compile(r"(?:[\w{}=\"., ]{0,80}: )??(?P<target>\w+(?:::\w+)*): (?:[\w/.\-]{1,80}\.rs:\d{1,6}: )?")
_MAX_PREFIXES: Final = 4
_RECORD_WINDOW: Final = 400
"""A record's header stands within this many characters; VLLM_LOGGING_PREFIX is free text before it."""


def strip_ansi(text: str) -> str:
    """The text without colour and cursor escapes."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def peel(raw: str) -> Line:
    """Take the prefixes off one line.

    Args:
        raw: The line as printed, with or without its line end.

    Returns:
        Who printed it and what it says; unknown shapes come back whole, as `Source.BARE`.
    """
    first = raw[:1]
    if first == "(" and (quick := _USUAL.match(raw)) and "\x1b" not in raw:
        name, number, level, file = quick.groups()  # nearly every line: a child's record
        text = raw.rstrip("\r\n")
        return Line(text, name, int(number), level, text[quick.end() :], Source.VLLM, file)
    text = strip_ansi(raw).rstrip("\r\n")
    rest, pid, unit = text, None, ""
    first = text[:1]
    if (first.isalpha() or first.isdigit()) and (journal := _JOURNAL.match(text)):
        rest, unit = text[journal.end() :], journal["unit"]
        pid = int(journal["pid"]) if journal["pid"] else None
    elif first == "[" and (dmesg := _DMESG.match(text)) and _KERNEL_TEXT.match(text, dmesg.end()):
        rest, unit = text[dmesg.end() :], "kernel"
    if unit == "kernel" or (first in "NOMnop" and _KERNEL_TEXT.match(rest)):
        return Line(text, None, pid, None, rest, Source.KERNEL, unit)
    if unit == "systemd":
        return Line(text, None, pid, None, rest, Source.SYSTEMD, unit)
    if rest[:1] == "{" and (found := _peel_json(text, rest)):
        return found
    process = None
    if usual := _USUAL.match(rest):
        name, number, level, file = usual.groups()
        return Line(text, name, int(number) if number else pid, level, rest[usual.end() :], Source.VLLM, file)
    if record := _find_record(rest):
        for prefix in _PROCESS.finditer(rest, 0, record.start()):
            process, pid = prefix["name"], int(prefix["pid"])
        message = rest[record.end() :]
        return Line(text, process, pid, record["level"], message, Source.VLLM, record["file"])
    for _ in range(_MAX_PREFIXES):
        if rest[:1] != "(" or not (prefix_only := _PROCESS.match(rest)):
            break
        process, pid = prefix_only["name"], int(prefix_only["pid"])
        rest = rest[prefix_only.end() :]
    return _peel_foreign(text, process, pid, rest)


def _find_record(rest: str) -> re.Match[str] | None:
    """The header of vLLM's own record behind free text; most other lines cost a few searches."""
    head = rest[:_RECORD_WINDOW]
    return _RECORD.search(head) if " [" in head and _DATE.search(head) else None


def _peel_foreign(text: str, process: str | None, pid: int | None, rest: str) -> Line:
    """Lines of loggers that are not vLLM's; each knows its own shape."""
    if uvicorn := _UVICORN.match(rest):
        level = "DEBUG" if uvicorn["level"] == "TRACE" else uvicorn["level"]
        return Line(text, process, pid, level, rest[uvicorn.end() :], Source.UVICORN)
    if rest[:1].isdigit():
        if found := _FLASHINFER.match(rest):
            message = rest[found.end() :]
            return Line(text, process, pid, found["level"], message, Source.FLASHINFER, found["file"])
        if found := _RUST.match(rest):
            level = {"WARN": "WARNING", "TRACE": "DEBUG"}.get(found["level"], found["level"])
            target = _RUST_TARGET.match(found["rest"].lstrip())
            message = found["rest"].lstrip()[target.end() if target else 0 :]
            return Line(text, process, pid, level, message, Source.RUST, target["target"] if target else "")
    return Line(text, process, pid, None, rest)


def _peel_json(text: str, rest: str) -> Line | None:
    """A line of vLLM's JSON formatter, or of the Rust front end's; None for any other object."""
    try:
        record = json.loads(rest)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    fields = record.get("fields")
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        return Line(text, None, None, str(record.get("level", "INFO")), fields["message"], Source.RUST)
    message, level = record.get("message"), record.get("levelname")
    if not isinstance(message, str) or not isinstance(level, str):
        return None
    process = record.get("vllm_process_name") or record.get("processName")
    pid = record.get("process")
    return Line(
        text,
        process if isinstance(process, str) else None,
        pid if isinstance(pid, int) else None,
        level,
        message,
        Source.JSON,
        str(record.get("name", "")),
        str(record.get("exc_info") or ""),
    )
