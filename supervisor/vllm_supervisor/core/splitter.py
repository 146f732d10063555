"""The engine's output as it was read, cut into lines."""

from __future__ import annotations

from typing import Final

MAX_LINE: Final = 64 * 1024
"""Bytes of one line that are kept; a request that is logged whole can be megabytes long."""


class Splitter:
    r"""Cuts a byte stream into lines at `\n` and `\r`, in bounded memory.

    A carriage return ends a line too, because progress bars use nothing else. Empty lines are
    dropped: a bar begins with the `\r` that the line before it ended with.

    Attributes:
        cut: How many lines were longer than `limit` and lost their end.
    """

    __slots__ = ("_dropping", "_limit", "_pending", "cut")

    def __init__(self, limit: int = MAX_LINE) -> None:
        """Keep at most `limit` bytes of a line."""
        self._limit = limit
        self._pending = bytearray()
        self._dropping = False
        self.cut = 0

    def feed(self, data: bytes) -> list[str]:
        """Take the next piece of the stream and give back the lines that it completes.

        Args:
            data: Bytes as they were read; a line, a character or a line end may be torn anywhere.

        Returns:
            Complete lines without their line ends; bytes that are not UTF-8 become U+FFFD.
        """
        first, ended, rest = data.replace(b"\r", b"\n").partition(b"\n")
        self._append(first)
        if not ended:
            return []
        lines: list[str] = []
        self._finish(lines)
        if len(rest) > self._limit:
            *whole, last = rest.split(b"\n")
            for piece in whole:
                self._append(piece)
                self._finish(lines)
        else:
            # None of these can be too long, and a line end is never a part of a character: all of them at once.
            together, _, last = rest.rpartition(b"\n")
            lines += filter(None, together.decode("utf-8", "replace").split("\n"))
        self._append(last)
        return lines

    @property
    def pending(self) -> bytes:
        """What was read of a line that is not complete yet."""
        return bytes(self._pending)

    def flush(self) -> list[str]:
        """The rest without a line end, once the stream has ended."""
        lines: list[str] = []
        self._finish(lines)
        return lines

    def _append(self, piece: bytes) -> None:
        if not piece or self._dropping:
            return
        room = self._limit - len(self._pending)
        self._pending += piece[:room]
        if len(piece) > room:
            self._dropping = True
            self.cut += 1

    def _finish(self, lines: list[str]) -> None:
        if self._pending:
            lines.append(self._pending.decode("utf-8", "replace"))
            self._pending.clear()
        self._dropping = False
