"""Follows tracebacks line by line, apart for every process, although eight workers print at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from vllm_supervisor.core.lines import Line, Source

_HEADER = "Traceback (most recent call last):"
_GLUED = f"]{_HEADER}"
"""A bar (tqdm ends it with `it/s]`) has no line end until it is full, so what follows it is glued to it."""
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:Error|Exception|Exit|Interrupt|Failed|Failure|Unsupported|Again"
    r"|OutOfResources|BrokenProcessPool|Full|Empty)"
    r"(?::|$| )",
)
_ANY = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}(?::(?: |$)|$)")
"""Behind the frames of a traceback the first line at column 0 names the exception, whatever its class is called."""
_OWNER = re.compile(r"Process (?P<name>[A-Za-z][\w\-]*):$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MARKS: Final = (
    ("shm", re.compile(r"shared_memory\.py|shm_broadcast\.py|shm_object_storage\.py")),
    ("all-reduce", re.compile(r"custom_all_reduce|all_reduce_utils\.py|create_shared_buffer")),
    ("compile", re.compile(r"vllm/compilation/|torch/_inductor/|torch/_dynamo/|torch/_functorch/|/triton/")),
    ("listen", re.compile(r"in (?:create_server_socket|setup_server|bind_sockets?)\b")),
    ("weights", re.compile(r"in load_weights|weight_utils\.py|model_loader/")),
)
_MAX_OPEN: Final = 256
_TAIL: Final = 3
"""Lines of text after an exception that may still belong to its message."""


@dataclass(slots=True)
class Trace:
    """A traceback that is being printed.

    Attributes:
        owner: The process that a `Process NAME:` line announced for it.
        frames: Marks of the source files seen in it.
        ignored: Python itself says that it ignores the exception.
        ended: The line that names the exception was there.
        named: It was the last one.
    """

    owner: str | None = None
    frames: set[str] = field(default_factory=set)
    ignored: bool = False
    ended: bool = False
    named: bool = False
    deep: bool = False
    tail: int = 0


class Tracebacks:
    """The open tracebacks by process and pid."""

    __slots__ = ("_announced", "_ignored", "_open")

    def __init__(self) -> None:
        """Start with none open."""
        self._open: dict[tuple[str | None, int | None, bool], Trace] = {}
        self._announced: str | None = None
        self._ignored = False

    def see(self, line: Line) -> Trace | None:
        """Take the next line.

        Args:
            line: Any peeled line.

        Returns:
            The traceback that the line belongs to, or None.
        """
        if line.source is Source.JSON:
            return self._whole(line) if line.detail or "\n" in line.message else None
        bare = line.source is Source.BARE
        key = (line.process, line.pid, bare)
        message = line.message
        if message.startswith(_HEADER) or (bare and message.endswith(_GLUED)):
            return self._begin(key, bare)
        trace = self._open.get(key)
        if trace is None:
            if bare:
                self._notice(message)
            return None
        trace.named = False
        if message[:1] in (" ", "\t", ""):
            self._mark(trace, message)
            return trace
        if _EXCEPTION.match(message) or (trace.deep and not trace.ended and _ANY.match(message)):
            trace.ended, trace.named, trace.tail = True, True, 0
            if "ValidationError: " in message:
                trace.frames.add("validation")
            return trace
        if message.startswith(_CHAINED):
            trace.tail = 0
            return trace
        trace.tail += 1
        if (trace.ended and trace.tail > _TAIL) or not (bare or line.level in ("ERROR", "CRITICAL")):
            del self._open[key]
            return None
        return trace

    def _begin(self, key: tuple[str | None, int | None, bool], bare: bool) -> Trace:
        earlier = self._open.get(key)
        chained = earlier is not None and not earlier.ignored and earlier.ended and earlier.tail == 0
        trace = earlier if chained and earlier else Trace()
        trace.ended, trace.named, trace.deep, trace.tail = False, False, False, 0
        if bare:
            trace.owner, self._announced = self._announced or trace.owner, None
            trace.ignored, self._ignored = self._ignored, False
        if len(self._open) >= _MAX_OPEN:
            self._open.clear()
        self._open[key] = trace
        return trace

    def _whole(self, line: Line) -> Trace:
        """A JSON record holds its traceback in one piece."""
        trace = Trace(ended=True)
        for part in (*line.message.split("\n"), *line.detail.split("\n")):
            self._mark(trace, part)
            if "ValidationError: " in part:
                trace.frames.add("validation")
        return trace

    def _notice(self, message: str) -> None:
        if message[-1:] == ":" and (owner := _OWNER.match(message)):
            self._announced = owner["name"]
        elif message.startswith("Exception ignored in"):
            self._ignored = True
        elif message:
            self._announced, self._ignored = None, False

    @staticmethod
    def _mark(trace: Trace, message: str) -> None:
        if message.startswith('  File "'):
            trace.deep = True
            for name, regex in _MARKS:
                if regex.search(message):
                    trace.frames.add(name)
        elif message.startswith("  Value error, "):
            trace.frames.add("value-error")


def is_exception(message: str) -> bool:
    """Whether a line at column 0 names an exception, as the last line of a traceback does."""
    return _EXCEPTION.match(message) is not None
