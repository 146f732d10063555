"""Alerts on the GPUs and on the supervisor itself."""
# ruff: noqa: INP001 - a folder of files to run and to deploy, no package

from __future__ import annotations

from alert import Alert

_HELD_DOWN = 'vllm_supervisor_gpu_throttled{reason=~"hw-.*|sw-thermal|board-limit|reliability"}'

ALERTS = {
    "gpu": (
        Alert(
            "VllmGpuLost",
            "vllm_supervisor_gpu_up == 0",
            "1m",
            "critical",
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} cannot be read.",
        ),
        Alert(
            "VllmGpuXid",
            "increase(vllm_supervisor_gpu_xid_errors_total[15m]) > 0 or"
            " (vllm_supervisor_gpu_xid_errors_total unless vllm_supervisor_gpu_xid_errors_total offset 15m)",
            "0m",
            "warning",
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} reported Xid {{ $labels.xid }}.",
        ),
        Alert(
            "VllmGpuEccUncorrected",
            'increase(vllm_supervisor_gpu_ecc_errors_total{kind="uncorrected"}[1h]) > 0',
            "0m",
            "critical",
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} had memory errors that could not be corrected.",
        ),
        Alert(
            "VllmGpuRowRemap",
            'vllm_supervisor_gpu_remapped_rows{kind=~"pending|failed"} == 1',
            "1m",
            "warning",
            "Row remapping of GPU {{ $labels.gpu }} of {{ $labels.instance }} is {{ $labels.kind }}.",
        ),
        Alert(
            "VllmGpuThrottled",
            f"avg_over_time({_HELD_DOWN}[10m]) > 0.5",
            "1m",
            "warning",
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} is held down: {{ $labels.reason }}.",
        ),
        Alert(
            "VllmGpuLinkDegraded",
            "(vllm_supervisor_gpu_pcie_link_generation < vllm_supervisor_gpu_pcie_link_generation_max"
            " or vllm_supervisor_gpu_pcie_link_width < vllm_supervisor_gpu_pcie_link_width_max)"
            " and vllm_supervisor_gpu_utilization_ratio > 0.5",
            "5m",
            "warning",
            "The PCIe link of GPU {{ $labels.gpu }} of {{ $labels.instance }} is slower than it could be, while busy.",
        ),
        Alert(
            "VllmGpuReplays",
            "increase(vllm_supervisor_gpu_pcie_replays_total[10m]) > 100",
            "0m",
            "warning",
            "The PCIe link of GPU {{ $labels.gpu }} of {{ $labels.instance }} repeats packets.",
        ),
        Alert(
            "VllmGpuMemoryTaken",
            "instance:vllm_gpu_others_bytes:max > 4e9 and on (job, instance) vllm_supervisor_ready == 1",
            "10m",
            "warning",
            "Somebody else holds GPU memory on {{ $labels.instance }}.",
        ),
    ),
    "supervisor": (
        Alert(
            "VllmGpuReadingsOld",
            "time() - max by (job, instance) (vllm_supervisor_gpu_last_sample_timestamp_seconds) > 60",
            "0m",
            "warning",
            "No GPU of {{ $labels.instance }} has been read for more than a minute.",
        ),
        Alert(
            "VllmOutputDropped",
            "increase(vllm_supervisor_output_dropped_total[15m]) > 0",
            "0m",
            "info",
            "The journal did not take all of the engine's output on {{ $labels.instance }}.",
        ),
        Alert(
            "VllmNotifyErrors",
            "increase(vllm_supervisor_notify_errors_total[15m]) > 0",
            "0m",
            "warning",
            "systemd refused messages of {{ $labels.instance }}.",
        ),
    ),
}
"""The alerts by group."""
