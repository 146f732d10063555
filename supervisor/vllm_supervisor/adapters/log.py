"""Our own log, by way of structlog: to stderr, for the journal with its priority in front.

The engine's lines go the same way. Where stderr is the journal (JOURNAL_STREAM names it), each
line begins with `<N>`, which the journal takes for its priority; elsewhere it does not.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

# structlog takes rich in when it is there, for tracebacks in colour: 5 MiB that a service never uses.
_blocked = sys.modules.setdefault("rich", None) is None  # type: ignore[arg-type]
import structlog  # noqa: E402 - after the line above

if _blocked:
    del sys.modules["rich"]

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

Write = Callable[[bytes, int], None]


def is_journal(descriptor: int = 2) -> bool:
    """Whether a descriptor is connected to the journal (systemd.exec(5), JOURNAL_STREAM)."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def marks(*, journal: bool) -> tuple[str, ...]:
    """What stands in front of a line, by its priority (0 to 7): `<N>` for the journal, elsewhere nothing."""
    return tuple(f"<{priority}>" if journal else "" for priority in range(8))


def line_for(text: str, priority: int, *, journal: bool) -> bytes:
    """One line as it is written: with its priority for the journal."""
    clean = text.replace("\n", " ")
    return f"{marks(journal=journal)[priority]}{clean}\n".encode(errors="replace")


class _Sink:
    """A logger for structlog that hands whole lines to `write`."""

    def __init__(self, write: Write, *, journal: bool) -> None:
        self._write = write
        self._journal = journal

    def msg(self, message: str, priority: int) -> None:
        self._write(line_for(message, priority, journal=self._journal), 1)

    debug = info = warning = error = critical = msg


def _render(_: Any, level: str, event: MutableMapping[str, Any]) -> tuple[tuple[str, int], dict[str, Any]]:
    """`message key=value`: the sentence first, because people read it."""
    text = str(event.pop("event", ""))
    pairs = " ".join(f"{key}={value!r}" for key, value in event.items())
    return (f"vllm-supervisor: {text}{' ' if pairs else ''}{pairs}", PRIORITIES.get(level, 6)), {}


def logger(write: Write, *, journal: bool, level: str = "info") -> structlog.typing.FilteringBoundLogger:
    """A logger that writes through `write(line, lines)`, which must not block."""
    made: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        _Sink(write, journal=journal),
        processors=[_render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=True,
    )
    return made


def stderr_write(data: bytes, _lines: int = 1) -> None:
    """Write directly, for the time before and after the loop."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
