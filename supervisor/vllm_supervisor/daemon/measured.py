"""What earlier starts measured, as the planner takes it: the history instead of estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_supervisor.core.plan.request import Measured

GIB = 1 << 30


def measured_from(rows: Iterable[Mapping[str, Any]], config_hash: str = "") -> tuple[Measured, ...]:
    """The measured figures of successful starts, oldest first.

    Args:
        rows: Rows of the history.
        config_hash: Only starts of this configuration count; empty takes all.
    """
    found = [
        _measured(row["figures"])
        for row in rows
        if row["ready_at"] is not None and (not config_hash or row["config_hash"] == config_hash)
    ]
    return tuple(item for item in found if item is not None)


def _measured(figures: Mapping[str, Any]) -> Measured | None:
    """None where the log gave no figure that a plan could use."""
    weights, cache = figures.get("weights_gib"), figures.get("kv_cache_gib")
    if weights is None and cache is None:
        return None
    used, taken, total = (figures.get(name) for name in ("gpu_memory_utilization", "kv_cache_gib", "gpu_total_gib"))
    overhead = None
    if weights is not None and used is not None and taken is not None and total is not None:
        overhead = round((used * total - weights - taken) * GIB)
    tokens = figures.get("kv_cache_tokens")
    return Measured(
        tensor_parallel_size=int(figures.get("tensor_parallel_size") or 1),
        weights_bytes=round(weights * GIB) if weights is not None else None,
        overhead_bytes=overhead,
        kv_cache_bytes=round(cache * GIB) if cache is not None else None,
        kv_cache_tokens=int(tokens) if tokens is not None else None,
        gpu_memory_utilization=used,
        kv_cache_dtype="fp8" if str(figures.get("kv_cache_dtype", "")).startswith("fp8") else "auto",
        engine_version=figures.get("engine_version"),
    )
