"""Sizes as people write them."""

from __future__ import annotations

import re

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)")
_UNITS: dict[str, int] = {"B": 1} | {
    f"{letter}{binary}B": int((1024 if binary else 1000) ** power)
    for power, letter in enumerate("KMGT", 1)
    for binary in ("i", "")
}


def parse_amount(text: str) -> int:
    """Bytes of `64GiB`, `1.5 TiB`, `500 MB`.

    Raises:
        ValueError: it is no size; the message says how one is written.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{text!r} is no size; write a number with a unit, such as "64GiB" or "500MB"')
    return round(float(match[1]) * _UNITS[match[2]])
