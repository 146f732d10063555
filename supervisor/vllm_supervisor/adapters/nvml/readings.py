"""What is read of a GPU, and with which call."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = dict[str, Any]

SLOW_PERIOD = 10.0
"""Seconds between two readings of what is dear or hardly changes; the replay counter and the MIG mode
take 0.15 ms a GPU each (H200, driver 580), a hundred times the others. Energy (3 ms) and PCIe
throughput (21 ms) are never read."""

PARTITIONS = "partitions"
"""The reading whose handles `PROCESSES` is read with; never a part of a report."""
PROCESSES = "processes"

THROTTLE_REASONS = {
    0x004: "sw-power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal",
    0x040: "hw-thermal",
    0x080: "hw-power-brake",
    0x200: "board-limit",
    0x400: "reliability",
}
"""NVML's bits that mean "slower than it could be"; idle clocks and clocks set by the operator do not."""


def _memory(nv: Any, handle: Any) -> Fields:
    try:  # the second version leaves out what the driver reserves for itself
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
    except (nv.NVMLError, AttributeError, TypeError):
        memory = nv.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}


def _processes(nv: Any, devices: Any) -> Fields:
    found: dict[int, int | None] = {}
    for device in devices:
        for one in nv.nvmlDeviceGetComputeRunningProcesses(device):
            size, before = one.usedGpuMemory, found.get(one.pid, 0)
            found[one.pid] = None if size is None or before is None else before + size
    # Pids of another namespace name nobody here, or a stranger; none that exists means all are.
    if found and not any(os.path.exists(f"/proc/{pid}") for pid in found):  # noqa: PTH110 - pathlib is heavy
        return {"processes": None}
    return {"processes": sorted(found.items())}


def _partitions(nv: Any, handle: Any) -> Fields:
    """MIG devices; a partitioned board does not list their processes itself."""
    devices: list[Any] = []
    mig = nv.nvmlDeviceGetMigMode(handle)[0] == 1
    for index in range(nv.nvmlDeviceGetMaxMigDeviceCount(handle) if mig else 0):
        try:
            devices.append(nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nv.NVMLError:
            continue  # this slot holds no partition
    return {"mig": mig, PARTITIONS: devices}


def _throttled(nv: Any, handle: Any) -> Fields:
    now = nv.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    known = nv.nvmlDeviceGetSupportedClocksThrottleReasons(handle) | now
    return {"throttled": {name: bool(now & bit) for bit, name in THROTTLE_REASONS.items() if known & bit}}


def _clock(name: str, kind: int) -> Any:
    return lambda nv, h: {"clocks_hertz": {name: nv.nvmlDeviceGetClockInfo(h, kind) * 1e6}}


def _ecc(name: str, kind: int) -> Any:  # counted over the board's life (1), not since the driver's load (0)
    return lambda nv, h: {"ecc_errors": {name: nv.nvmlDeviceGetTotalEccErrors(h, kind, 1)}}


def _max_generation(nv: Any, handle: Any) -> Fields:
    return {"pcie_link_generation_max": nv.nvmlDeviceGetMaxPcieLinkGeneration(handle)}


def _remapped(nv: Any, handle: Any) -> Fields:
    names = ("corrected", "uncorrected", "pending", "failed")
    return {"remapped_rows": dict(zip(names, map(int, nv.nvmlDeviceGetRemappedRows(handle)), strict=True))}


READINGS: dict[str, tuple[float, Any]] = {
    PARTITIONS: (SLOW_PERIOD, _partitions),
    "memory": (0.0, _memory),
    PROCESSES: (0.0, _processes),
    "utilization": (0.0, lambda nv, h: {"utilization_ratio": nv.nvmlDeviceGetUtilizationRates(h).gpu / 100}),
    "power": (0.0, lambda nv, h: {"power_watts": nv.nvmlDeviceGetPowerUsage(h) / 1000}),
    "temperature": (0.0, lambda nv, h: {"temperature_celsius": nv.nvmlDeviceGetTemperature(h, 0)}),
    "clock sm": (0.0, _clock("sm", 1)),
    "clock memory": (0.0, _clock("memory", 2)),
    "throttled": (0.0, _throttled),
    "generation": (0.0, lambda nv, h: {"pcie_link_generation": nv.nvmlDeviceGetCurrPcieLinkGeneration(h)}),
    "width": (0.0, lambda nv, h: {"pcie_link_width": nv.nvmlDeviceGetCurrPcieLinkWidth(h)}),
    "power limit": (SLOW_PERIOD, lambda nv, h: {"power_limit_watts": nv.nvmlDeviceGetEnforcedPowerLimit(h) / 1000}),
    "ecc corrected": (SLOW_PERIOD, _ecc("corrected", 0)),
    "ecc uncorrected": (SLOW_PERIOD, _ecc("uncorrected", 1)),
    "remapped": (SLOW_PERIOD, _remapped),
    "replays": (SLOW_PERIOD, lambda nv, h: {"pcie_replays": nv.nvmlDeviceGetPcieReplayCounter(h)}),
    "maximum generation": (SLOW_PERIOD, _max_generation),
    "maximum width": (SLOW_PERIOD, lambda nv, h: {"pcie_link_width_max": nv.nvmlDeviceGetMaxPcieLinkWidth(h)}),
}
"""What is read: at most how often (0: each time), and how. A call that fails removes its own fields only."""
