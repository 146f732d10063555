"""What earlier starts measured, as the planner takes it: the history instead of estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vllm_supervisor.adapters.history import History
from vllm_supervisor.core.plan.request import Measured
from vllm_supervisor.core.plan.sizes import GIB

from .instance import read_instance
from .locate import SYSTEM_CONFIG, locate, names


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


def measured_of_model(model: str) -> tuple[Measured, ...]:
    """What the starts of this model on this machine measured, whichever instance made them."""
    found: list[Measured] = []
    for name in names():
        instance = read_instance(SYSTEM_CONFIG / f"{name}.toml")
        if isinstance(instance, list) or Path(instance.settings.engine.model) != Path(model).absolute():
            continue
        history = History(locate(name).history_path, read_only=True)
        found += measured_from(history.rows())
        history.close()
    return tuple(found)
