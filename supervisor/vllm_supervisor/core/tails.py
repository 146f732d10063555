"""The last lines of every engine process, kept apart, so that one that floods hides no other.

Child processes print `(Worker_TP3 pid=4711) ` before each line (F3.1); what has no such prefix
belongs to the main process, or to native code of any of them.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from typing import Final

LINES: Final = 2000
"""Lines that are kept of each process."""

CHARACTERS: Final = 1 << 20
"""… as long as they are not longer than this together."""

LINE_CHARACTERS: Final = 1000
"""Longer lines are cut."""

PROCESSES: Final = 24
"""More processes than this share one place; TP=8 has ten."""

PREFIXES: Final = 1024
"""Prefixes that are remembered."""

PREFIX_CHARACTERS: Final = 100

MAIN: Final = "main"
OTHERS: Final = "others"

_PREFIX = re.compile(r"(?:\x1b\[[0-9;]{0,12}m)?\((?P<name>[A-Za-z][\w =\-]{0,60}?) pid=(?P<pid>\d{1,10})[,)]")


def process_of(text: str) -> str:
    """The process that printed a line, as a name for a file: `Worker_TP3-4711`, or `main`."""
    first = text[:1]
    if first not in {"(", "\x1b"}:
        return MAIN
    found = _PREFIX.match(text)
    return f"{re.sub(r'[^0-9A-Za-z_]+', '_', found['name'])}-{found['pid']}" if found else MAIN


class _Kept:
    """What one process printed last, with the number of each line over all of them."""

    __slots__ = ("lines", "size")

    def __init__(self) -> None:
        self.lines: collections.deque[tuple[int, str]] = collections.deque()
        self.size = 0


class Tails:
    """What was printed last, by process.

    Lines are appended by one thread and read by another: every reading copies first.
    """

    def __init__(self) -> None:
        """Nothing was printed yet."""
        self._number = 0
        self._kept: dict[str, _Kept] = {}
        self._by_prefix: dict[str, _Kept] = {}

    def _find(self, text: str, prefix: str) -> _Kept:
        """Where a line belongs, remembered by its prefix: a hundred thousand lines begin with the same ten."""
        name = process_of(text)
        if name not in self._kept and len(self._kept) >= PROCESSES:
            name = OTHERS
        kept = self._kept.setdefault(name, _Kept())
        if len(self._by_prefix) >= PREFIXES:
            self._by_prefix.clear()
        self._by_prefix[prefix] = kept
        return kept

    def add(self, text: str) -> None:
        """Take the next line."""
        first = text[:1]
        prefix = text[: text.find(")", 0, PREFIX_CHARACTERS) + 1] if first == "(" or first == "\x1b" else ""  # noqa: PLR1714 - each line
        kept = self._by_prefix.get(prefix) or self._find(text, prefix)
        self._number += 1
        if len(text) > LINE_CHARACTERS:
            text = text[:LINE_CHARACTERS]
        kept.lines.append((self._number, text))
        kept.size += len(text)
        while len(kept.lines) > LINES or kept.size > CHARACTERS:
            kept.size -= len(kept.lines.popleft()[1])

    def extend(self, texts: Iterable[str]) -> None:
        """Take several lines in their order."""
        for text in texts:
            self.add(text)

    def by_process(self) -> dict[str, list[str]]:
        """The kept lines of each process, oldest first."""
        return {name: [text for _, text in list(kept.lines)] for name, kept in list(self._kept.items())}

    def all(self) -> list[str]:
        """Every kept line, in the order in which they were printed: `extend` makes the same of them again."""
        return self.last(sum(len(kept.lines) for kept in list(self._kept.values())))

    def last(self, count: int) -> list[str]:
        """The last lines of all processes together, in the order in which they were printed."""
        merged = sorted(line for kept in list(self._kept.values()) for line in list(kept.lines))
        return [text for _, text in merged[-count:]] if count > 0 else []
