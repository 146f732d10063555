"""The display of a run in the foreground: where the start stands, below the lines that pass by.

On a terminal the last lines of the screen say phase, shards, time left and time passed, and all
output of the engine and of ours goes through above them, unchanged. Everywhere else (a pipe, a
service) there is no display and output goes straight to stderr.

Only one thread writes to the terminal. A terminal that takes nothing (Ctrl-S) blocks that thread
and, in turn, the forwarder, which then drops and counts; it never blocks the loop or the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vllm_supervisor.core.overview import phase_rows
from vllm_supervisor.core.words import duration

from .terminal import BAR_WIDTH, SIGNS, STYLES, brief

EVERY_S = 0.2
"""How often the display is repainted while nothing passes by, in seconds."""

PIECE_BYTES = 1 << 16
LEAST_ROWS, LEAST_COLUMNS = 12, 40
"""A smaller terminal shows output only."""


class TerminalDisplay:
    """The last lines of a terminal.

    Args:
        descriptor: The terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._terminal = descriptor
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        self._status: tuple[Mapping[str, Any], float] | None = None
        self._height = 0
        self._painted = b""
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The end of a pipe whose lines pass by above the display."""
        return self._write_end

    async def keep_showing(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Show what `status` gives, until cancelled."""
        while True:
            self.update(status())
            await asyncio.sleep(EVERY_S)

    def update(self, status: Mapping[str, Any]) -> None:
        """Show this from now on; the time that passes is counted here."""
        self._status = (status, time.monotonic())

    def close(self) -> None:
        """End the thread once everything is written, for at most two seconds."""
        os.close(self._write_end)
        self._thread.join(2.0)

    def _run(self) -> None:
        rest = b""
        while True:
            ready, _, _ = select.select([self._read_end], [], [], EVERY_S)
            piece = os.read(self._read_end, PIECE_BYTES) if ready else b""
            if ready and not piece:
                break
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            self._paint(whole + newline)
        self._status = None
        self._paint(rest + b"\n" if rest else b"")
        os.close(self._read_end)

    def _paint(self, lines: bytes) -> None:
        region, height = self._region()
        if not lines and region == self._painted:
            return
        # Up to the display's first line, erase from there to the end, write what passes by, paint again.
        erase = b"\r\x1b[%dA\x1b[J" % self._height if self._height else b""
        self._height, self._painted = height, region
        view = memoryview(erase + lines.replace(b"\n", b"\r\n") + region)
        with contextlib.suppress(OSError):  # a terminal that was closed shows nothing any more
            while view:
                view = view[os.write(self._terminal, view) :]

    def _region(self) -> tuple[bytes, int]:
        """The display's text and how many lines it has."""
        known = self._status
        try:
            size = os.get_terminal_size(self._terminal)
        except OSError:
            return b"", 0
        if known is None or size.lines < LEAST_ROWS or size.columns < LEAST_COLUMNS:
            return b"", 0
        status, at = known
        passed = time.monotonic() - at
        shown = {**status, "running_seconds": (status.get("running_seconds") or 0.0) + passed}
        out = io.StringIO()
        # One column less than there are, so that no line wraps and the count of lines holds.
        Console(file=out, force_terminal=True, width=size.columns - 1, height=size.lines).print(_lines(shown))
        text = out.getvalue()
        return text.replace("\n", "\r\n").encode(), text.count("\n")


def _lines(status: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text("─" * BAR_WIDTH, "dim"), brief(status)]
    rows = [row for row in phase_rows(status) if row.seconds is not None]
    line = Text(overflow="ellipsis", no_wrap=True)
    for row in rows:
        line.append(f"{SIGNS[row.standing]} {row.phase} ", STYLES[row.standing])
        line.append(f"{duration(row.seconds or 0.0)}  ", "yellow" if row.slow else "dim")
    if rows and not status["ready"]:
        parts.append(line)
    if status["ready"]:
        parts.append(Text(f"{status['model']} answers at {status['url']}; Ctrl-C stops it", "dim", no_wrap=True))
    return Group(*parts)
