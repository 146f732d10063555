"""Sizes of memory as people write them, and the memory of cards that people call by name."""

from __future__ import annotations

import re

GIB = 1 << 30
MIB = 1 << 20

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 1000,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 1000**2,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 1000**3,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 1000**4,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Bytes of `95.6GiB`, `40 GB`, `12G` (binary) or a bare number of bytes; None when it is no size."""
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        return None
    return int(float(match[1]) * factor)


def gib(size: float) -> str:
    """`70.8 GiB`: one decimal, as the tools of the field print it."""
    return f"{size / GIB:.1f} GiB"


CARDS: tuple[tuple[str, float, tuple[int, int]], ...] = (
    ("rtx pro 6000", 95.6, (12, 0)),
    ("rtx pro 5000", 47.8, (12, 0)),
    ("rtx 6000 ada", 48.0, (8, 9)),
    ("rtx a6000", 48.0, (8, 6)),
    ("rtx 5090", 31.8, (12, 0)),
    ("rtx 4090", 24.0, (8, 9)),
    ("rtx 3090", 24.0, (8, 6)),
    ("h200", 139.8, (9, 0)),
    ("gh200", 94.5, (9, 0)),
    ("h100 nvl", 93.1, (9, 0)),
    ("h100", 79.6, (9, 0)),
    ("h20", 95.6, (9, 0)),
    ("h800", 79.6, (9, 0)),
    ("gb200", 184.0, (10, 0)),
    ("b200", 178.4, (10, 0)),
    ("gb300", 276.0, (10, 3)),
    ("b300", 267.7, (10, 3)),
    ("a100 40gb", 39.5, (8, 0)),
    ("a100", 79.3, (8, 0)),
    ("a800", 79.3, (8, 0)),
    ("l40s", 44.7, (8, 9)),
    ("l40", 44.7, (8, 9)),
    ("l4", 22.5, (8, 9)),
    ("a40", 44.7, (8, 6)),
    ("a10", 22.3, (8, 6)),
    ("v100", 31.7, (7, 0)),
    ("t4", 14.6, (7, 5)),
)
"""Card, GiB as NVML totals them (less than what is printed on the box), compute capability.

The RTX PRO 6000 and the H200 are measured; the others are the vendors' sizes less what ECC and the
driver keep, good to about one per cent. NVML's own figure is used whenever there is a driver.
"""


def find_card(name: str) -> tuple[str, int, tuple[int, int]] | None:
    """The card that a name means (`RTX PRO 6000`, `NVIDIA H200`): name, bytes, compute capability."""
    wanted = " ".join(re.findall(r"[a-z0-9]+", name.lower()))
    if "a100" in wanted and re.search(r"\b40 ?gb?\b", wanted):
        wanted = "a100 40gb"
    found = [card for card in CARDS if re.search(rf"(?<![a-z0-9]){re.escape(card[0])}(?![a-z0-9])", wanted)]
    if not found:
        return None
    title, size, capability = max(found, key=lambda card: len(card[0]))
    return title.upper(), int(size * GIB), capability
