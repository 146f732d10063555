"""What depends on the engine's version or the card: defaults, and who can keep an FP8 cache."""

from __future__ import annotations

import re

from .shape import Shape
from .sizes import GIB

Version = tuple[int, int, int]


def parse_version(text: str | None) -> Version | None:
    """The release of `0.32.0+cpu`, `0.11.0rc2` or `0.32.1.dev12+gabc`; None when it is none."""
    match = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def default_utilization(version: Version | None) -> float:
    """`--gpu-memory-utilization` without the flag: 0.90 up to 0.18, 0.92 from 0.20 on.

    An unknown version gets the smaller one, which promises less.
    """
    return 0.92 if version is not None and version >= (0, 20, 0) else 0.90


def default_batch(memory_bytes: int | None) -> tuple[int, int]:
    """The server's default `max_num_batched_tokens` and `max_num_seqs` (engine/arg_utils.py of 0.32).

    They follow the card's memory; without knowing it, those of a large card.
    """
    if memory_bytes is None or 70 * GIB <= memory_bytes < 160 * GIB:
        return 8192, 1024
    return (16384, 1024) if memory_bytes >= 160 * GIB else (2048, 256)


def fp8_cache_works(shape: Shape, version: Version | None, capability: tuple[int, int] | None) -> bool | None:
    """Whether an FP8 KV cache is served; None when version or card are not known.

    MLA: FlashMLA and CUTLASS on 9.x and 10.x, Triton's from engine 0.26 on and compute capability
    8.9 up. Other attention: compute capability 8.9 up.
    """
    if capability is None:
        return None
    if not shape.is_mla:
        return capability >= (8, 9)
    if version is None:
        return None
    if capability[0] in {9, 10} and version >= (0, 18, 0):
        return True
    return capability >= (8, 9) and version >= (0, 26, 0)
