"""As much of PNG as it takes to look at a screenshot (W3C PNG, third edition): its size and its colours."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

HEAD = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {2: 3, 6: 4}
"""Bytes of a pixel by colour type: RGB and RGBA, eight bits each; browsers write no other."""


def size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def colours(data: bytes) -> Counter[tuple[int, int, int]]:
    """How many pixels have each colour; transparency is not looked at. Slow: for small pictures.

    Raises:
        ValueError: it is no PNG of eight bits a channel, RGB or RGBA, not interlaced.
    """
    chunks = dict(_chunks(data))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if depth != 8 or kind not in _CHANNELS or interlaced:
        raise ValueError(f"a PNG of depth {depth}, colour type {kind}, interlace {interlaced}")
    step = _CHANNELS[kind]
    raw = zlib.decompress(b"".join(body for name, body in _chunks(data) if name == b"IDAT"))
    found: Counter[tuple[int, int, int]] = Counter()
    above = bytearray(width * step)
    for row in range(height):
        start = row * (width * step + 1)
        above = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + width * step]), above, step)
        found.update(zip(above[0::step], above[1::step], above[2::step], strict=True))
    return found


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(HEAD):
        raise ValueError("no PNG")
    place = len(HEAD)
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        yield data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        place += length + 12


def _unfiltered(kind: int, row: bytearray, above: bytearray, step: int) -> bytearray:
    for place in range(len(row)):
        left = row[place - step] if place >= step else 0
        up = above[place]
        corner = above[place - step] if place >= step else 0
        if kind == 1:
            row[place] = row[place] + left & 255
        elif kind == 2:
            row[place] = row[place] + up & 255
        elif kind == 3:
            row[place] = row[place] + (left + up) // 2 & 255
        elif kind == 4:
            row[place] = row[place] + _paeth(left, up, corner) & 255
    return row


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
