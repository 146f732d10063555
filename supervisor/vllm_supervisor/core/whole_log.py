"""What can be said of a log only once its last line was read.

A running supervisor is told by the kernel that its engine ended. Who reads a log has only its last
lines: here a traceback at the very end counts as an end, and a text that holds no line of an engine
is told from a log in which nothing failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from .causes import Cause
from .diagnosis import UNKNOWN_LINE_ADVICE, UNKNOWN_SUMMARY, of_engine
from .lines import Line, Source, peel
from .scanner import Scanner

_ENGINES: Final = frozenset({Source.VLLM, Source.FLASHINFER})
"""Shapes that hardly any other program's log has."""
_UVICORN = re.compile(
    r"(?:Started server process|Waiting for application|Application (?:startup|shutdown)|Uvicorn running on|"
    r"Finished server process|Shutting down$|\S{0,80} ?- \"[A-Z]{3,7} /)"
)
_ANNOUNCED: Final = ("Exception in ", "Task exception was never", "future: ", "handle: ", "--- Logging error")
_OURS: Final = "vllm-supervisor: "


_ALIVE: Final = frozenset({"DEBUG", "INFO", "WARNING"})
_CUT_ADVICE: Final = "The log breaks off within a traceback: look for its end, which names the error."
_SERVES_ADVICE: Final = "Nothing to do while the engine serves: the traceback at the end is that of one request."


@dataclass(frozen=True, slots=True)
class NoLog:
    """Why a text says nothing about an engine.

    Attributes:
        lines: Lines that are not empty.
        last: The last of them that is not the kernel's, without a journal's prefix.
        own: The last one that our supervisor wrote; else empty.
    """

    lines: int
    last: str = ""
    own: str = ""


class WholeLog:
    """Reads a log to its end."""

    __slots__ = ("_announced", "_cut", "_engine", "_last", "_lines", "_own", "_request", "_scanner", "_trace_line")

    def __init__(self) -> None:
        """Start before the first line."""
        self._scanner = Scanner()
        self._lines = 0
        self._engine = False
        self._last = self._own = ""
        self._trace_line = ""
        self._cut = self._request = self._announced = False

    def feed(self, raw_line: str) -> None:
        """Take the next line, as printed."""
        raw = raw_line.rstrip("\r\n")
        found = self._scanner.feed(raw)
        line = peel(raw)
        if not line.message.strip():
            return
        self._lines += 1
        if line.source is not Source.KERNEL:
            self._last = line.message
        if line.message.startswith(_OURS):
            self._own = line.message.removeprefix(_OURS)
        self._engine = self._engine or bool(found) or _is_engine(line)
        self._follow(raw, line, alive=bool(found) or line.level in _ALIVE)

    def verdict(self) -> Cause | NoLog:
        """The cause, as the scanner knows it or as the last lines tell it; or that this is no log of an engine."""
        cause = self._scanner.verdict()
        if not self._engine and not self._trace_line and cause.reason in ("healthy", "unknown"):
            return NoLog(self._lines, self._last, self._own)
        if not self._trace_line or cause.reason != "healthy" or self._scanner.stopped:
            return cause
        if self._request:
            return replace(cause, evidence=self._trace_line, advice=_SERVES_ADVICE)
        advice = _CUT_ADVICE if self._cut else UNKNOWN_LINE_ADVICE
        return Cause("unknown", self._trace_line, cause.phase, advice, UNKNOWN_SUMMARY)

    def _follow(self, raw: str, line: Line, *, alive: bool) -> None:
        """Remember the last line of a traceback until something shows that the engine went on."""
        trace = self._scanner.trace
        if trace is None or trace.ignored:
            self._announced = line.level in ("ERROR", "CRITICAL") or line.message.startswith(_ANNOUNCED)
            if alive:
                self._trace_line = ""
            return
        if not self._trace_line:
            # While it serves, what the API server reports of a request is daily business.
            reported = self._announced or line.level is not None
            self._request = self._scanner.serving and reported and not of_engine(line.process)
        if trace.named or not trace.ended:
            self._trace_line, self._cut = raw, not trace.named


def _is_engine(line: Line) -> bool:
    """Whether hardly anything but an engine prints a line like this."""
    if line.source is Source.UVICORN:
        return _UVICORN.match(line.message) is not None
    return line.source in _ENGINES or line.process is not None
