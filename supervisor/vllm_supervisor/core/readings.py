"""Which values a snapshot gives to which metric.

A value that is unknown gives no series; nothing here ever raises for want of a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .causes import REASONS, CauseClass
from .gpu import GpuSample, engine_bytes
from .metrics import METRICS, Metric, Snapshot
from .phases import ORDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .gpu import GpuTable

Series = tuple[tuple[str, ...], float]
"""Label values in the order of the declaration, and the value."""

_NO_FAILURES = {(reason, kind.value): 0 for reason, kind in REASONS.items() if kind is not CauseClass.NONE}
"""Every failure there is, from the beginning: a series that begins at 1 has no increase to alert on."""

_PLAIN = tuple(
    metric.name for metric in METRICS.values() if not metric.labels and metric.name in Snapshot.__dataclass_fields__
)
_BY_ONE_LABEL = tuple(
    metric.name
    for metric in METRICS.values()
    if len(metric.labels) == 1 and metric.name in Snapshot.__dataclass_fields__ and metric.name != "phase"
)


def readings(snapshot: Snapshot) -> Iterator[tuple[Metric, list[Series]]]:
    """Every metric that has at least one series, with its series."""
    found: dict[str, list[Series]] = {
        "build_info": [((snapshot.version, snapshot.engine_version), 1.0)],
        "phase": [((phase.value,), float(phase == snapshot.phase)) for phase in ORDER],
        "cluster_node_phase": list(snapshot.cluster_node_phase.items()),
        "failures_total": [(labels, float(n)) for labels, n in (_NO_FAILURES | dict(snapshot.failures_total)).items()],
    }
    for name in _PLAIN:
        value = getattr(snapshot, name)
        if value is not None:
            found[name] = [((), float(value))]
    for name in _BY_ONE_LABEL:
        by_label: Mapping[str, float | None] = getattr(snapshot, name) or {}
        found[name] = [((label,), float(value)) for label, value in by_label.items() if value is not None]
    if snapshot.gpu is not None:
        found.update(_gpu(snapshot.gpu, snapshot.engine_pids))
    for name, metric in METRICS.items():
        if series := found.get(name):
            yield metric, series


def _gpu(table: GpuTable, pids: frozenset[int]) -> dict[str, list[Series]]:
    """The series of all GPUs: of a lost one only that it is down and what was counted before."""
    found: dict[str, list[Series]] = {name: [] for name in METRICS if name.startswith("gpu_")}
    for record in table.records:
        labels = (str(record.index), record.uuid, record.name)
        found["gpu_up"].append((labels, float(record.up)))
        if record.last_sample is not None:
            found["gpu_last_sample_timestamp_seconds"].append((labels, record.last_sample))
        found["gpu_samples_total"] += [((*labels, key), float(count)) for key, count in record.samples.items()]
        found["gpu_xid_errors_total"] += [((*labels, str(xid)), float(n)) for xid, n in record.xid_errors.items()]
    for sample in table.samples:
        labels = (str(sample.index), sample.uuid, sample.name)
        for name, single in _singles(sample, pids).items():
            if single is not None:
                found[name].append((labels, float(single)))
        for name, many in _many(sample).items():
            found[name] += [((*labels, key), float(value)) for key, value in many.items()]
    return found


def _singles(sample: GpuSample, pids: frozenset[int]) -> dict[str, float | None]:
    return {
        "gpu_memory_used_bytes": sample.memory_used_bytes,
        "gpu_memory_total_bytes": sample.memory_total_bytes,
        "gpu_engine_bytes": engine_bytes(sample, pids),
        "gpu_utilization_ratio": sample.utilization_ratio,
        "gpu_power_watts": sample.power_watts,
        "gpu_power_limit_watts": sample.power_limit_watts,
        "gpu_temperature_celsius": sample.temperature_celsius,
        "gpu_pcie_link_generation": sample.pcie_link_generation,
        "gpu_pcie_link_generation_max": sample.pcie_link_generation_max,
        "gpu_pcie_link_width": sample.pcie_link_width,
        "gpu_pcie_link_width_max": sample.pcie_link_width_max,
        "gpu_pcie_replays_total": sample.pcie_replays,
    }


def _many(sample: GpuSample) -> dict[str, Mapping[str, float]]:
    return {
        "gpu_clock_hertz": sample.clocks_hertz,
        "gpu_throttled": sample.throttled,
        "gpu_ecc_errors_total": sample.ecc_errors,
        "gpu_remapped_rows": sample.remapped_rows,
    }
