"""What people are shown of each GPU: its readings, or why there are none.

A GPU that cannot be read keeps its row: seven rows where eight cards are would hide the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .gpu import engine_bytes

if TYPE_CHECKING:
    from .gpu import GpuSample, GpuTable

TROUBLES: Final = {
    "lost": "lost: it fell off the bus",
    "stuck": "stuck: a call into the driver does not return",
    "missing": "missing: the driver does not list it any more",
}
"""The words for `GpuLost.reason`; any other reason is NVML's own words."""


def gpu_rows(table: GpuTable, pids: frozenset[int]) -> list[dict[str, Any]]:
    """One row a GPU, by its number, as /status gives it.

    Args:
        table: What is known.
        pids: The engine's processes.

    Returns:
        With readings (bytes, watts, degrees Celsius, a ratio), or with `trouble`: why it cannot be read.
    """
    rows = [_read(sample, pids) for sample in table.samples]
    reasons = {(gone.index, gone.uuid): TROUBLES.get(gone.reason, gone.reason) for gone in table.lost}
    rows += [
        {
            "index": record.index,
            "name": record.name,
            "trouble": reasons.get((record.index, record.uuid)) or table.error or "it does not answer",
        }
        for record in table.records
        if not record.up
    ]
    return sorted(rows, key=lambda row: int(row["index"]))


def _read(sample: GpuSample, pids: frozenset[int]) -> dict[str, Any]:
    return {
        "index": sample.index,
        "name": sample.name,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_total_bytes": sample.memory_total_bytes,
        "engine_bytes": engine_bytes(sample, pids),
        "utilization_ratio": sample.utilization_ratio,
        "power_watts": sample.power_watts,
        "temperature_celsius": sample.temperature_celsius,
    }
