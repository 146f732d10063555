"""What of a line a rule may read, and where in it.

A rule is never shown a record at INFO or WARNING, an access line, a frame of a traceback or a bare
line outside one: such lines quote prompts, paths and harmless errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vllm_supervisor.core.lines import Line, Source

from .rule import Kind
from .tracebacks import Trace, is_exception

_CLASS = re.compile(r"[A-Za-z_][\w.]{0,120}: ")
_QUOTED = re.compile(r"(?:[\w.]{1,80}: )?Worker failed with error '(?P<text>.*)")
_WATCHDOG = re.compile(
    r"\[rank\d+\]:\[E\d{3,4} .{0,160}?(?:terminated with exception: |(?=\[?Rank \d+\]? ?Watchdog caught|Watchdog "
    r"caught))"
)
_WHAT = re.compile(r"  what\(\):  (?:\[PG .{0,120}? terminated with exception: )?")
_NCCL = re.compile(r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] )?[\w.\-]{1,80}:\d+:\d+ \[\d+\] .{0,120}?NCCL WARN ")
_PLAIN_NATIVE = re.compile(
    r"(?:vllm|api_server\.py|__main__\.py|launch\.py)(?: [\w\-]{1,30}){0,2}: error: |Fatal Python error: "
    r"|Segmentation fault|Aborted|Failed: Cuda error |\[\w[\w.\-]*:\d+:\d+:\d+\] Caught signal "
    r"|terminate called after throwing an instance of 'std::bad_alloc'|Bus error|Unable to determine the device "
    r"handle for |Killed$|\S{1,80}: line \d+: +\d+ Killed\b",
)
_DISK = re.compile(r"(?:collect2|cc1plus|/\S{1,120}|fatal error|nvcc|ptxas|ninja)\b.{0,200}No space left on device")
_SHORT: Final = 24
_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class View:
    """A piece of a line that rules of one kind may match at one of some places."""

    kind: Kind
    text: str
    places: tuple[int, ...]
    weak: bool = False


def _places(text: str, start: int = 0) -> tuple[int, ...]:
    """The begin of the text and what follows each `SomeError: ` in front of it."""
    places = [start]
    at = start
    while len(places) <= _DEPTH and (head := _CLASS.match(text, at)):
        at = head.end()
        places.append(at)
    return tuple(places)


def _exception(text: str) -> Iterator[View]:
    if quoted := _QUOTED.match(text):
        inner = quoted["text"].split("', please check the stack trace", 1)[0]
        yield View(Kind.ERROR, inner, _places(inner), weak=True)
    elif text.startswith("  Value error, "):
        yield View(Kind.ERROR, text, _places(text, len("  Value error, ")))
    elif text.startswith(("  Input should be ", "  Extra inputs ", "  Unexpected keyword argument ")):
        yield View(Kind.ERROR, text, (2,))
    elif text[:1] not in (" ", "\t", ""):
        yield View(Kind.ERROR, text, _places(text))


def may_tell(message: str) -> bool:
    """Whether a bare line outside a traceback is worth a closer look; the many others are let go here.

    Args:
        message: The peeled line. Every pattern for such lines here and in `endings` needs one of these words.
    """
    return (
        len(message) < _SHORT
        or "rror" in message
        or "WARN " in message
        or "Engine" in message
        or "Worker" in message
        or "signal" in message
        or "ault" in message
        or "resource_tracker" in message
        or "what()" in message
        or "]:[E" in message
        or "Interrupt" in message
        or "No space" in message
        or "Abort" in message
        or "bad_alloc" in message
        or "Unable to" in message
        or "Killed" in message
    )


def views(line: Line, trace: Trace | None) -> Iterator[View]:
    """The pieces of a line that may be evidence.

    Args:
        line: The peeled line.
        trace: The traceback that it belongs to.

    Yields:
        At most a few views; nothing for the lines that prove nothing.
    """
    match line.source:
        case Source.KERNEL:
            yield View(Kind.KERNEL, line.message, (0,))
        case Source.SYSTEMD:
            yield View(Kind.SYSTEMD, line.message, (0,))
        case Source.BARE:
            yield from _bare(line.message, trace)
        case Source.JSON if line.level in ("ERROR", "CRITICAL"):
            for part in (*line.message.split("\n"), *line.detail.split("\n")):
                yield from _exception(part)
        case _ if line.level in ("ERROR", "CRITICAL"):
            yield from _exception(line.message)
        case Source.VLLM if line.message.startswith("MPClient: "):
            yield View(Kind.RECORD, line.message, (0,))


def _bare(message: str, trace: Trace | None) -> Iterator[View]:
    if trace:
        if not trace.ignored and (message[:2] == "  " or trace.ended or is_exception(message)):
            yield from _exception(message)
        return
    first = message[:1]
    if first == "[" and "]:[E" in message[:20] and (watchdog := _WATCHDOG.match(message)):
        text = message[watchdog.end() :]
        yield View(Kind.NATIVE, text, _places(text), weak=True)
    elif first == " " and (what := _WHAT.match(message)):
        text = message[what.end() :]
        yield View(Kind.NATIVE, text, _places(text), weak=True)
    elif "NCCL WARN " in message and (nccl := _NCCL.match(message)):
        yield View(Kind.NATIVE, message, (nccl.end(),))
    elif _PLAIN_NATIVE.match(message) or ("No space left" in message and _DISK.match(message)):
        yield View(Kind.NATIVE, message, (0,))
