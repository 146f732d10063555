"""Progress bars of the engine: shards that are loaded, graphs that are captured.

They come from tqdm on stderr, bare or behind a process prefix, updated by carriage returns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SHARDS = re.compile(
    r"(?P<bar>(?:Loading|Multi-thread loading) [\w ()\-]{1,80}):\s+\d+% Completed \| "
    r"(?P<done>[\d.]+)(?P<done_unit>[kMGTP]?)/(?P<total>[\d.]+)(?P<total_unit>[kMGTP]?) \[",
)
_CAPTURE = re.compile(
    r"(?P<bar>Capturing (?:[\w\-]+ ){0,3}CUDA graphs?(?: shapes)?(?: \([^)]{0,80}\))?):\s+\d+%\|.{0,120}?\| "
    r"(?P<done>\d+)/(?P<total>\d+) ",
)
_PREFETCH = re.compile(r"(?P<bar>Prefetching checkpoint files): \d+% \((?P<done>\d+)/(?P<total>\d+)\)")
_WARMUP = re.compile(r"(?:JIT kernel warmup|DeepGEMM warmup|\[AutoTuner\]: Tuning)\b")
_ANY_BAR = re.compile(r"\s*[^|%]{0,200}?:\s+\d{1,3}%(?:\|| Completed \|)")
_UNITS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True, slots=True)
class Bar:
    """One state of a bar.

    Attributes:
        title: The bar's own words.
        done: Finished units.
        total: Units in all; at least 1.
        capture: The bar counts CUDA graphs; else it counts what is loaded.
    """

    title: str
    done: float
    total: float
    capture: bool


def bar(message: str) -> Bar | None:
    """Read a bar of shards or of graphs.

    Args:
        message: A peeled line.

    Returns:
        The bar, or None for anything else; tqdm's `k`, `M`, `G` become factors of 1000.
    """
    if "%" not in message:
        return None
    if shards := _SHARDS.match(message) or _PREFETCH.match(message):
        groups = shards.groupdict()
        done = _number(groups["done"], groups.get("done_unit") or "")
        total = _number(groups["total"], groups.get("total_unit") or "")
        return _bar(shards["bar"], done, total, capture=False)
    if capture := _CAPTURE.match(message):
        return _bar(capture["bar"], float(capture["done"]), float(capture["total"]), capture=True)
    return None


def is_warmup(message: str) -> bool:
    """Whether this is a bar of kernel warm-up or autotuning, which counts no graphs."""
    return _WARMUP.match(message) is not None


def is_bar(message: str) -> bool:
    """Whether this looks like any progress bar at all."""
    return "%" in message and _ANY_BAR.match(message) is not None


def _number(text: str, unit: str) -> float:
    try:
        return float(text) * _UNITS[unit]
    except ValueError:
        return 0.0


def _bar(title: str, done: float, total: float, *, capture: bool) -> Bar | None:
    if total < 1.0:
        return None
    return Bar(title, min(done, total), total, capture)
