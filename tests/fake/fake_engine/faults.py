"""Output that no log should hold: floods, giant lines, broken bytes, colours, bars.

A fault is a table: {at: PHASE, kind: KIND, who: api|core|wN, stream: 1|2, ...}; `at` is a phase or "imports".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARKER = "fault-done"


def output(fault: dict[str, Any]) -> Iterator[bytes]:
    """The bytes of a fault, in pieces; ends with a line that holds `MARKER` unless `mark` is false."""
    kind = fault.get("kind", "text")
    if kind == "flood":
        yield from _flood(int(fault.get("lines", 10_000)), int(fault.get("length", 120)))
    elif kind == "giant":  # one line without an end
        left = int(fault.get("bytes", 100_000_000))
        while left > 0:
            yield b"x" * min(left, 1 << 20)
            left -= 1 << 20
        yield b"\n"
    elif kind == "invalid-utf8":
        yield b"\xff\xfe broken \xc3( bytes \x80\n"
    elif kind == "nul":
        yield b"nul \x00 and bell \x07 and backspace \x08\n"
    elif kind == "ansi":
        yield b"\x1b[1;36m(EngineCore pid=1)\x1b[0;0m \x1b[31mINFO\x1b[0m 11-30 20:08:32 [a.py:1] colour\n"
    elif kind == "bars":
        count = int(fault.get("count", 200))
        yield (
            "".join(f"\rTuning: {100 * i // count:3d}%|{'█' * (i % 9)}| {i}/{count}" for i in range(count + 1)).encode()
            + b"\n"
        )
    elif kind == "text":
        yield str(fault.get("text", "")).encode("utf-8", "surrogateescape") + b"\n"
    else:
        raise ValueError(f"fake engine: unknown fault {kind}")
    if fault.get("mark", True):
        yield MARKER.encode() + b"\n"


def _flood(lines: int, length: int) -> Iterator[bytes]:
    block = 1000
    for start in range(0, lines, block):
        rows = (
            f"flood {number} ".ljust(length - 1, "f")[: max(length - 1, 1)]
            for number in range(start, min(start + block, lines))
        )
        yield ("\n".join(rows) + "\n").encode()
