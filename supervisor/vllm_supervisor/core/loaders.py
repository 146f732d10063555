"""Ways in which vLLM can load safetensors: which are measured, on what, and what follows from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .words import size


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    Attributes:
        name: What it is called here.
        settings: What `[engine.args]` says for it; empty for the default.
        package: What must be installed beside vLLM; empty for nothing.
    """

    name: str
    settings: str = ""
    package: str = ""


WAYS = (
    Way("default"),
    Way("multithread", """model-loader-extra-config = '{"enable_multithread_load": true, "num_threads": 8}'"""),
    Way("prefetch", 'safetensors-load-strategy = "prefetch"'),
    Way("eager", 'safetensors-load-strategy = "eager"'),
    Way("fastsafetensors", 'load-format = "fastsafetensors"', "fastsafetensors"),
    Way("runai_streamer", 'load-format = "runai_streamer"', "runai_model_streamer"),
    Way("instanttensor", 'load-format = "instanttensor"', "instanttensor"),
)
"""From vLLM 0.32 (model_loader/weight_utils.py)."""

WORTH = 1.25
"""A way is recommended when it is faster than the default by this factor. A choice: each figure is one run, and beside
other work two runs differed by a fifth and more."""
NEAR = 0.9
"""A way that reaches this share of the disk's own speed leaves nothing to gain but a faster disk."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a way did. Bytes a second; None where it was not measured.

    Attributes:
        name: The way.
        cold: With nothing of the files in memory.
        warm: With all of them in memory.
        problem: Why it was not measured; empty when it was.
    """

    name: str
    cold: float | None = None
    warm: float | None = None
    problem: str = ""


def sample(sizes: Sequence[int], limit: int) -> list[int]:
    """The numbers of the shards to measure with, spread over the checkpoint; none when not even one fits."""
    count = len(sizes)
    for wanted in range(count, 0, -1):
        chosen = [number * count // wanted for number in range(wanted)]
        if sum(sizes[number] for number in chosen) <= limit:
            return chosen
    smallest = min(range(count), key=lambda number: sizes[number], default=None)
    return [smallest] if smallest is not None and sizes[smallest] <= limit else []


def advice(disk: float | None, found: Sequence[Measured], total: int) -> list[str]:
    """What to set and what it brings, in sentences.

    Args:
        disk: The disk's own speed, bytes a second.
        found: What was measured.
        total: Bytes of the whole checkpoint.
    """
    by_name = {one.name: one for one in found}
    default = by_name.get("default")
    cold = [one for one in found if one.cold]
    if default is None or not default.cold or not cold:
        return ["no cold figures, so nothing is recommended"]
    best = max(cold, key=lambda one: one.cold or 0.0)
    said = []
    if (best.cold or 0.0) >= default.cold * WORTH:
        (way,) = [way for way in WAYS if way.name == best.name]
        said.append(
            f"{best.name} reads {size(best.cold or 0)}/s from the disk, the default {size(default.cold)}/s: the "
            f"weights ({size(total)}) would take {_time(total, best.cold)} instead of {_time(total, default.cold)}; "
            f"set in [engine.args] {way.settings}"
        )
    else:
        best = default
        said.append(f"the default is as good as any: {size(default.cold)}/s from the disk; leave it")
    if disk:
        share = (best.cold or 0.0) / disk
        said.append(
            "the disk itself gives no more: only a faster one would help"
            if share >= NEAR
            else f"the disk itself gives {size(disk)}/s, which the read-ahead of the supervisor uses (load.readahead)"
        )
    if default.warm:
        said.append(
            f"from memory the default reads {size(default.warm)}/s: `vllm-supervisor warm` before the start brings that"
        )
    return said


def _time(total: int, rate: float | None) -> str:
    return f"{total / rate:.0f} s" if rate and total >= 10 * rate else f"{total / (rate or 1.0):.1f} s"
