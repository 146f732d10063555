"""Ways in which vLLM can load safetensors: which are measured, on what, and what follows from the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .readahead.order import multithread
from .readahead.report import ENOUGH_BYTES
from .words import size


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    Attributes:
        name: What it is called here.
        settings: What `[engine.args]` says for it; empty for the default.
        package: What must be installed beside vLLM; empty for nothing.
        gpu: It reads into a GPU and nowhere else.
        direct: It reads past the page cache.
    """

    name: str
    settings: str = ""
    package: str = ""
    gpu: bool = False
    direct: bool = False


WAYS = (
    Way("default"),
    Way("multithread", """model-loader-extra-config = '{"enable_multithread_load": true, "num_threads": 8}'"""),
    Way("prefetch", 'safetensors-load-strategy = "prefetch"'),
    Way("eager", 'safetensors-load-strategy = "eager"'),
    Way("fastsafetensors", 'load-format = "fastsafetensors"', "fastsafetensors", gpu=True),
    Way("runai_streamer", 'load-format = "runai_streamer"', "runai_model_streamer", direct=True),
    Way("instanttensor", 'load-format = "instanttensor"', "instanttensor", gpu=True, direct=True),
)
"""From vLLM 0.32 (model_loader/weight_utils.py)."""

WORTH = 1.25
"""A way is recommended when it is faster than the default by this factor. A choice: each figure is one run, and beside
other work two runs differed by a fifth and more."""
WORTH_S = 1.0
"""Nor for less than this."""
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


def set_now(options: Mapping[str, Any]) -> str:
    """The way that an engine takes by its options, under their canonical names; empty for one that is not measured."""
    load_format = str(options.get("load-format") or "auto").lower()
    if load_format not in {"auto", "hf", "safetensors"}:
        return load_format if any(way.name == load_format for way in WAYS) else ""
    if multithread(options):
        return "multithread"
    strategy = str(options.get("safetensors-load-strategy") or "lazy")
    return {"lazy": "default", "prefetch": "prefetch", "eager": "eager"}.get(strategy, "")


def advice(
    disk: float | None, found: Sequence[Measured], total: int, now: str = "default", *, read: int | None = None
) -> list[str]:
    """What to set and what it brings, in sentences.

    Args:
        disk: The disk's own speed, bytes a second.
        found: What was measured.
        total: Bytes of the whole checkpoint.
        read: Bytes of the shards that were measured, if not all.
        now: The way that is set; where it was not measured, the default stands for it.
    """
    cold = {one.name: one for one in found if one.cold}
    base = cold.get(now) or cold.get("default")
    if base is None:
        return ["no cold figures, so nothing is recommended"]
    read = total if read is None else read
    if read < ENOUGH_BYTES:
        why = f"{size(read)} tell what opening files costs, and not how fast they are read"
        return [f"{why}: nothing is recommended below {size(ENOUGH_BYTES)}"]
    best = max(cold.values(), key=lambda one: one.cold or 0.0)
    said = []
    if (best.cold or 0.0) >= (base.cold or 0.0) * WORTH and _seconds(total, base) - _seconds(total, best) >= WORTH_S:
        said.append(
            f"{_named(best)} reads {size(best.cold or 0)}/s from the disk, {_named(base)} {size(base.cold or 0)}/s: "
            f"the weights ({size(total)}) would take {_time(total, best.cold)} instead of {_time(total, base.cold)}; "
            f"{_change(_way(base.name), _way(best.name))}"
        )
    else:
        best = base
        said.append(
            f"{_named(best)} is as good as any for {size(total)}: {size(best.cold or 0)}/s from the disk; leave it"
        )
    if disk:
        share = (best.cold or 0.0) / disk
        used = "" if _way(best.name).direct else ", which the read-ahead of the supervisor uses (load.readahead)"
        said.append(
            "the disk itself gives no more: only a faster one would help"
            if share >= NEAR
            else f"the disk itself gives {size(disk)}/s{used}"
        )
    return [*said, *_from_memory(base, best, found, total)]


def _from_memory(base: Measured, best: Measured, found: Sequence[Measured], total: int) -> list[str]:
    """What the page cache gives, where the read-ahead puts what fits: another way may be the better one there."""
    warm = [one for one in found if one.warm and not _way(one.name).direct]
    if not warm:
        return []
    fastest = max(warm, key=lambda one: one.warm or 0.0)
    rate, ours = fastest.warm or 1.0, best.warm or 1.0
    if best in warm and (rate < ours * WORTH or total / ours - total / rate < WORTH_S):
        fastest, rate = best, ours
    said = (
        "from memory, where the read-ahead and `vllm-supervisor warm` bring what fits, "
        f"{_named(fastest)} reads {size(rate)}/s"
    )
    if fastest is not best:
        how = "change nothing" if fastest is base else _change(_way(base.name), _way(fastest.name))
        said += f" and {_named(best)} {size(ours)}/s: where memory holds the weights, {how}"
    return [said]


def _way(name: str) -> Way:
    (found,) = [way for way in WAYS if way.name == name]
    return found


def _seconds(total: int, one: Measured) -> float:
    return total / (one.cold or 1.0)


def _named(one: Measured) -> str:
    return "the default" if one.name == "default" else one.name


def _change(before: Way, after: Way) -> str:
    """What to write into the configuration, and what to take out of it."""
    if not after.settings:
        return f"take {before.settings} out of [engine.args]"
    instead = f" instead of {before.settings}" if before.settings else ""
    return f"set in [engine.args] {after.settings}{instead}"


def _time(total: int, rate: float | None) -> str:
    return f"{total / rate:.0f} s" if rate and total >= 10 * rate else f"{total / (rate or 1.0):.1f} s"
