"""The line of progress of `fetch`."""

from __future__ import annotations

import json
import os
import sys
import time

LINE_EVERY_S = 10.0


class Shown:
    """Progress: one line, repainted, on a terminal; a line now and then elsewhere; JSON for `provision`.

    Attributes:
        painted: A line on the terminal has no end yet.
    """

    painted = False

    def __init__(self) -> None:
        self._last = 0.0
        self._machine = os.environ.get("VSUP_PROGRESS") == "json"

    def __call__(self, sentence: str, done: int, total: int) -> None:
        """Show a sentence; `done` of `total` is for the bar that `provision` paints."""
        now = time.monotonic()
        if self._machine:
            print(
                f"@progress {json.dumps({'text': sentence, 'done': done, 'total': total})}", file=sys.stderr, flush=True
            )
        elif sys.stderr.isatty():
            # A longer one would go on in the next line, where nothing erases it.
            print(f"\r\x1b[K{cut(sentence, _columns() - 1)}", end="", file=sys.stderr, flush=True)
            Shown.painted = True
        elif now - self._last >= LINE_EVERY_S:
            self._last = now
            print(sentence, file=sys.stderr, flush=True)

    @staticmethod
    def end() -> None:
        """What is printed now begins a line of its own."""
        if Shown.painted:
            print(file=sys.stderr, flush=True)
            Shown.painted = False


def cut(text: str, room: int) -> str:
    """At most so many characters of it."""
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
