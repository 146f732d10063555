"""What is known about the GPUs: one reading of each, and what adds up over readings.

A field that could not be read is None or left out; it is never zero. The helper process sends one
report a line (`parse_report`); `gpu_records` folds reports into the table that everybody looks at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNLISTED_BYTES = 1 << 30
"""More memory than this in use on a GPU that lists no process at all means that the processes are
hidden (a container without the host's pids), not that there are none. Driver and display need less."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU.

    Attributes:
        index: NVML's index, counted from 0.
        uuid: The board's identity; it survives renumbering.
        name: The product name.
        memory_used_bytes: Memory in use, without what the driver reserves for itself.
        memory_total_bytes: Memory of the board.
        processes: (pid, bytes) of every compute process; bytes None where NVML does not say. None
            as a whole: the pids are not visible from here.
        utilization_ratio: Share of the last period with a kernel running, 0 to 1. A deadlocked
            collective shows 1.
        power_watts: Power drawn.
        power_limit_watts: The limit in force.
        temperature_celsius: Temperature of the die.
        clocks_hertz: By clock: `sm`, `memory`.
        throttled: By reason whether the clocks are held down for it now; reasons that this board
            does not know are missing.
        ecc_errors: Over the board's life, by kind: `corrected`, `uncorrected`.
        pcie_link_generation: In use now; an idle link drops to 1.
        pcie_link_width: Lanes in use now.
        pcie_link_generation_max: What board and slot can do.
        pcie_link_width_max: What board and slot can do.
        pcie_replays: PCIe packets sent again since the driver was loaded.
        remapped_rows: Memory rows replaced, by cause (`corrected`, `uncorrected`), and 0 or 1 for
            `pending` (a reset is needed) and `failed` (the board is to be replaced).
        mig: Whether the board is partitioned.
    """

    index: int
    uuid: str = ""
    name: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    processes: tuple[tuple[int, int | None], ...] | None = None
    utilization_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    clocks_hertz: Mapping[str, float] = field(default_factory=dict)
    throttled: Mapping[str, bool] = field(default_factory=dict)
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    pcie_link_generation: int | None = None
    pcie_link_width: int | None = None
    pcie_link_generation_max: int | None = None
    pcie_link_width_max: int | None = None
    pcie_replays: int | None = None
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    mig: bool | None = None


@dataclass(frozen=True, slots=True)
class GpuLost:
    """A GPU that could not be read.

    Attributes:
        index: NVML's index.
        uuid: Its identity, empty where it was never read.
        name: The product name, empty where it was never read.
        reason: `lost` (it fell off the bus), `stuck` (a call does not return), `missing` (it is not
            enumerated any more) or NVML's own words.
    """

    index: int
    uuid: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What is kept of one GPU over all reports, also while it cannot be read.

    Attributes:
        index: NVML's index when it was last seen.
        uuid: Its identity.
        name: The product name.
        up: Whether the last report read it.
        samples: Reports by outcome: `ok`, `failed`.
        last_sample: Unix seconds of the last reading, None before the first.
        xid_errors: Xid events by number since this daemon began.
    """

    index: int
    uuid: str
    name: str
    up: bool = False
    samples: Mapping[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0})
    last_sample: float | None = None
    xid_errors: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One line of the helper.

    Attributes:
        at: Monotonic seconds; the clock is the machine's, so the daemon's own compares with it.
        unix: Unix seconds.
        ok: Whether NVML answered at all.
        error: Why not, in one sentence.
        samples: The GPUs that were read.
        lost: The GPUs that were not.
        xid_events: (index, Xid) of each event since the line before.
    """

    at: float
    unix: float
    ok: bool
    error: str = ""
    samples: tuple[GpuSample, ...] = ()
    lost: tuple[GpuLost, ...] = ()
    xid_events: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuTable:
    """All that is known about the GPUs now.

    Attributes:
        samples: Current readings only.
        at: Monotonic seconds of the last report; 0 before the first.
        ok: Whether the source works.
        error: Why not, in one sentence.
        lost: GPUs that were there, or should be, and cannot be read.
        records: Every GPU ever seen, by index and identity.
    """

    samples: tuple[GpuSample, ...] = ()
    at: float = 0.0
    ok: bool = False
    error: str = "no sample yet"
    lost: tuple[GpuLost, ...] = ()
    records: tuple[GpuRecord, ...] = ()


def engine_bytes(sample: GpuSample, pids: frozenset[int]) -> int | None:
    """GPU memory held by some processes.

    Args:
        sample: The reading.
        pids: The engine's processes.

    Returns:
        Bytes; None where NVML does not show pids, or hides the size of one of ours.
    """
    if sample.processes is None:
        return None
    if not sample.processes and (sample.memory_used_bytes or 0) > UNLISTED_BYTES:
        return None
    total = 0
    for pid, size in sample.processes:
        if pid in pids:
            if size is None:
                return None
            total += size
    return total


def left_behind(samples: Sequence[GpuSample], pids: frozenset[int], before: int | None, *, shared: bool = False) -> int:
    """GPU memory, in bytes, that is still taken by processes which are gone; 0 where nobody can say.

    Args:
        samples: Readings from after their end.
        pids: The processes.
        before: Bytes in use on these GPUs when they were started; None where that was not seen.
        shared: Others take and give back memory of the same GPUs meanwhile, as the weights of another unit and the
            engine that maps them. Where NVML shows no pids, nobody can then say whose a rest is.
    """
    held = [(engine_bytes(sample, pids), sample.memory_used_bytes or 0) for sample in samples]
    told = sum(size for size, _ in held if size)
    if before is None or shared:
        return told
    # What was in use before is known of all GPUs together: beside GPUs that show pids, less is blamed than there is.
    hidden = sum(used for size, used in held if size is None)
    return told + max(hidden - before - UNLISTED_BYTES, 0)


def parse_report(line: str | bytes) -> GpuReport:
    """Read one line of the helper.

    Raises:
        ValueError: The line is not a report.
    """
    try:
        raw: Any = json.loads(line)
        return GpuReport(
            at=float(raw["at"]),
            unix=float(raw["unix"]),
            ok=bool(raw["ok"]),
            error=str(raw.get("error", "")),
            samples=tuple(_sample(one) for one in raw.get("samples", ())),
            lost=tuple(GpuLost(**one) for one in raw.get("lost", ())),
            xid_events=tuple((int(index), int(xid)) for index, xid in raw.get("xid_events", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a report of the GPU helper: {error!r}") from error


def _sample(raw: dict[str, Any]) -> GpuSample:
    processes = raw.pop("processes", None)
    return GpuSample(**raw, processes=None if processes is None else tuple((int(p), b) for p, b in processes))
