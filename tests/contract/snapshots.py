"""Snapshots of eight GPUs, and a page of metrics as the official parser reads it."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from vllm_supervisor.core.gpu import GpuReport, GpuSample, GpuTable
from vllm_supervisor.core.gpu_records import advance
from vllm_supervisor.core.metrics import METRICS, Snapshot

CARDS = tuple(
    GpuSample(
        index,
        f"GPU-{index}",
        "NVIDIA RTX PRO 6000",
        memory_used_bytes=80 << 30,
        memory_total_bytes=96 << 30,
        processes=((10, 70 << 30),),
        utilization_ratio=0.5,
        power_watts=300.0,
        clocks_hertz={"sm": 2.2e9},
        throttled={"hw-thermal": False, "sw-power-cap": True},
        ecc_errors={"corrected": 0},
        remapped_rows={"pending": 0},
        pcie_link_generation=5,
        pcie_replays=3,
    )
    for index in range(8)
)
SNAPSHOT = Snapshot(
    phase="ready",
    ready=True,
    version="0.1.0",
    start_time_seconds=1796077162.25,
    phase_seconds={"preflight": 0.1},
    failures_total={("gpu-busy", "transient"): 2},
    starts_total={"ready": 1},
    generation_tokens_per_second={"10s": 57.5, "60s": 0.0},
    gpu=advance(GpuTable(), GpuReport(1.0, 1.8e9, True, "", CARDS, (), ((3, 79),))),
    engine_pids=frozenset({10}),
)
FULL = replace(
    SNAPSHOT,
    **{
        name: 0.1 + number
        for number, (name, metric) in enumerate(METRICS.items())
        if not metric.labels and getattr(SNAPSHOT, name, 0) is None
    },
    **{
        name: {"one": 1, "two": 2.5}
        for name, metric in METRICS.items()
        if len(metric.labels) == 1 and name != "phase" and hasattr(SNAPSHOT, name)
    },
    **{
        name: {("one", "two"): 1.0, ("two", "one"): 2.5}
        for name, metric in METRICS.items()
        if len(metric.labels) == 2 and hasattr(SNAPSHOT, name)
    },
    gpu=advance(
        GpuTable(),
        GpuReport(
            1.0,
            1.8e9,
            True,
            "",
            tuple(
                replace(
                    card,
                    power_limit_watts=600.0,
                    temperature_celsius=61.0,
                    pcie_link_generation_max=5,
                    pcie_link_width=16,
                    pcie_link_width_max=16,
                )
                for card in CARDS
            ),
            (),
            ((3, 79),),
        ),
    ),
)


def parsed(page):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }
