"""Whether a run shows more than its output, and on what.

A service has no terminal: only a run in the foreground pays for drawing (six MiB of libraries).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Display(Protocol):
    """What a run in the foreground shows besides the output."""

    def fileno(self) -> int:
        """Where all output is to be written."""

    def update(self, status: Mapping[str, Any]) -> None:
        """Show this, as /status says it."""

    async def keep_showing(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Show what `status` gives, until cancelled."""

    def close(self) -> None:
        """Take the display away; output that was written before is shown."""


class NoDisplay:
    """Output goes straight through; nothing is shown besides."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor itself."""
        return self._descriptor

    def update(self, status: Mapping[str, Any]) -> None:
        """Nothing to show it on."""

    async def keep_showing(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Nothing to show it on."""

    def close(self) -> None:
        """Nothing to take away."""


def display_for(descriptor: int, environ: Mapping[str, str]) -> Display:
    """The display for a run whose stderr is `descriptor`: only on a terminal, and never in a service."""
    if not os.isatty(descriptor) or environ.get("NOTIFY_SOCKET") or environ.get("TERM", "dumb") == "dumb":
        return NoDisplay(descriptor)
    from .progress import TerminalDisplay

    return TerminalDisplay(descriptor)
