"""How much may be read ahead: memory that is free for it, and pressure that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_supervisor.core.words import size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .order import Order

FLOOR_RATIO = 0.05
FLOOR_BYTES = 1 << 30
"""So much of a machine's memory, or of a cgroup's limit, is left alone: a share, and at least this."""

PRESSED = 10.0
RELIEVED = 5.0
"""Per cent of the last ten seconds in which some task waited for memory (PSI, `some avg10`): reading
stops at the first, and goes on below the second."""

LEAST_BYTES = 64 << 20
"""A window smaller than this is not worth a process."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A look at the machine's memory, in bytes.

    Attributes:
        total: All there is, or the limit of the tightest cgroup.
        available: What can be had without swapping: free, or a cache that can be given back.
        pressure: `some avg10` of PSI in per cent; None where the kernel does not tell.
    """

    total: int
    available: int
    pressure: float | None = None


def room(seen: Memory, order: Order, checkpoint: int, loaded: float) -> int:
    """Bytes that may lie read ahead.

    Args:
        seen: Memory now. What was read already counts as available, as the kernel has it.
        order: What the engine will take of it, and the operator's own limit.
        checkpoint: Bytes of all shards.
        loaded: Share of them that the engine has loaded, 0 to 1.
    """
    kept = max(FLOOR_BYTES, seen.total * FLOOR_RATIO)
    coming = order.engine_bytes + (checkpoint if order.weights_stay else 0)
    free = max(int(seen.available - kept - coming * (1.0 - loaded)), 0)
    return free if order.limit_bytes is None else min(free, order.limit_bytes)


def pressed(seen: Memory, *, before: bool) -> bool:
    """Whether memory is short.

    Args:
        seen: Memory now. Without PSI only what is available counts.
        before: Whether it was short at the last look.
    """
    if seen.available < max(FLOOR_BYTES, seen.total * FLOOR_RATIO) / 2:
        return True
    return seen.pressure is not None and seen.pressure >= (RELIEVED if before else PRESSED)


def shortage(seen: Memory, order: Order, may: int, checkpoint: int) -> str:
    """Why there is too little memory to begin with; empty when there is enough."""
    if may >= checkpoint or (may >= LEAST_BYTES and not order.whole_only):
        return ""
    wanted = f"all of it ({size(checkpoint)})" if order.whole_only else f"even {size(LEAST_BYTES)}"
    bound = " as load.readahead allows" if order.limit_bytes is not None and order.limit_bytes <= may else ""
    return f"of {size(seen.available)} available memory {size(may)} may be used{bound}, too little for {wanted}"


def tightest(looks: tuple[Memory, ...]) -> Memory:
    """The look with the least available memory, under the highest pressure that any of them shows."""
    least = min(looks, key=lambda look: look.available)
    shown = [look.pressure for look in looks if look.pressure is not None]
    return Memory(least.total, least.available, max(shown) if shown else None)


def read_meminfo(text: str) -> Memory | None:
    """The machine's memory from /proc/meminfo; None when it is not as expected."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[0].isdigit() and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    return Memory(found["MemTotal"], found["MemAvailable"])


def read_pressure(text: str) -> float | None:
    """`some avg10` in per cent from a PSI file; None when it is not there."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"] and len(words) > 1 and words[1].startswith("avg10="):
            try:
                return float(words[1].removeprefix("avg10="))
            except ValueError:
                return None
    return None


def read_cgroup(files: Mapping[str, str]) -> Memory | None:
    """The memory of one cgroup from its files, by name; None without a limit.

    Version 2 has memory.max, memory.high and memory.current, version 1 memory.limit_in_bytes and
    memory.usage_in_bytes. File pages that it holds can be given back, as MemAvailable counts them.
    """
    limits = [
        int(text)
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        if (text := files.get(name, "").strip()).isdigit()
    ]
    used = next(
        (int(text) for name in ("memory.current", "memory.usage_in_bytes") if (text := files.get(name, "").strip())),
        None,
    )
    # Version 1 says "no limit" as the largest number of pages there is.
    if not limits or used is None or min(limits) >= 1 << 60:
        return None
    file_pages = 0
    for line in files.get("memory.stat", "").splitlines():
        name, _, value = line.partition(" ")
        if name in {"inactive_file", "active_file"} and value.strip().isdigit():
            file_pages += int(value)
    limit = min(limits)
    return Memory(limit, max(limit - used + file_pages, 0), read_pressure(files.get("memory.pressure", "")))
