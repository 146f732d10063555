"""The Grafana dashboard, made by code so that a test can ask Prometheus every query of it."""
# ruff: noqa: INP001 - a folder of files to run and to deploy, no package

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HERE = '{job=~"$job", instance=~"$instance"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
FINISHED = f"sum by (finished_reason) (rate(vllm:request_success_total{HERE}[$__rate_interval]))"
OTHERS = f"vllm_supervisor_gpu_memory_used_bytes{HERE} - vllm_supervisor_gpu_engine_bytes{HERE}"

NAMED = ("Phase", "Smoke test")
"""Panels that show a label, not a number."""


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: What it shows.
        queries: Legend and expression of each line; `HERE` selects the instance.
        unit: Grafana's name of the unit.
        kind: Grafana's panel type.
        width: Of 24 columns.
        stack: Whether the lines are parts of a whole.
        top: The axis' end, where it is known.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stack: bool = False
    top: float | None = None


ROWS: dict[str, tuple[Panel, ...]] = {
    "State": (
        Panel("Ready", {"ready": f"vllm_supervisor_ready{HERE}"}, kind="stat", width=3),
        Panel("Phase", {"{{phase}}": f"vllm_supervisor_phase{HERE} == 1"}, kind="stat", width=5),
        Panel(
            "Start", {"progress": f"vllm_supervisor_load_progress_ratio{HERE}"}, "percentunit", "gauge", width=4, top=1
        ),
        Panel("Time left", {"left": f"vllm_supervisor_load_eta_seconds{HERE}"}, "s", "stat", width=4),
        Panel("Smoke test", {"{{verdict}}": f"vllm_supervisor_smoke_verdict{HERE} == 1"}, kind="stat", width=4),
        Panel("KV cache holds", {"tokens": f"vllm_supervisor_kv_cache_tokens{HERE}"}, kind="stat", width=4),
        Panel("Phases of this start", {"{{phase}}": f"vllm_supervisor_phase_seconds{HERE}"}, "s", "bargauge"),
        Panel(
            "Failures",
            {"{{reason}}": f"increase(vllm_supervisor_failures_total{HERE}[$__rate_interval]) > 0"},
            stack=True,
        ),
        Panel("Engine processes", {"{{role}}": f"vllm_supervisor_engine_processes{HERE}"}, stack=True),
        Panel(
            "Weights read ahead",
            {
                "in memory for the engine": f"vllm_supervisor_readahead_ahead_bytes{HERE}",
                "checkpoint": f"vllm_supervisor_checkpoint_bytes{HERE}",
            },
            "bytes",
        ),
        Panel("Disk while reading ahead", {"disk": f"vllm_supervisor_readahead_disk_bytes_per_second{HERE}"}, "Bps"),
        Panel(
            "Pace of the smoke test",
            {
                "seconds to the first token": f"vllm_supervisor_smoke_first_token_seconds{HERE}",
                "tokens per second": f"vllm_supervisor_smoke_tokens_per_second{HERE}",
            },
        ),
    ),
    "Serving": (
        Panel(
            "Tokens per second",
            {
                "generated, {{window}}": f"vllm_supervisor_generation_tokens_per_second{HERE}",
                "prompt, {{window}}": f"vllm_supervisor_prompt_tokens_per_second{HERE}",
            },
        ),
        Panel(
            "Requests",
            {
                "running": f"instance:vllm_requests_running:sum{HERE}",
                "waiting": f"instance:vllm_requests_waiting:sum{HERE}",
            },
            stack=True,
        ),
        Panel("KV cache in use", {"fullest engine": f"instance:vllm_kv_cache_usage:max{HERE}"}, "percentunit", top=1),
        Panel("Time to first token", {"95 %": f"instance:vllm_ttft_seconds:p95_5m{HERE}"}, "s"),
        Panel("Time between tokens", {"95 %": f"instance:vllm_itl_seconds:p95_5m{HERE}"}, "s"),
        Panel("Preemptions per second", {"preemptions": f"instance:vllm_preemptions:rate5m{HERE}"}),
        Panel(
            "Finished requests",
            {"{{finished_reason}}": FINISHED},
            "reqps",
            stack=True,
        ),
        Panel(
            "Sign of life",
            {
                "seconds ago": f"vllm_supervisor_liveness_last_proof_seconds{HERE}",
                "engine {{engine}}": f"vllm_supervisor_liveness_engine_last_proof_seconds{HERE}",
            },
            "s",
        ),
        Panel(
            "Probe and canary",
            {"probe": f"vllm_supervisor_probe_seconds{HERE}", "canary": f"vllm_supervisor_canary_seconds{HERE}"},
            "s",
        ),
    ),
    "GPUs": (
        Panel(
            "Memory",
            {
                "GPU {{gpu}} engine": f"vllm_supervisor_gpu_engine_bytes{HERE}",
                "GPU {{gpu}} others": OTHERS,
            },
            "bytes",
        ),
        Panel("Utilisation", {"GPU {{gpu}}": f"vllm_supervisor_gpu_utilization_ratio{HERE}"}, "percentunit", top=1),
        Panel("Power", {"GPU {{gpu}}": f"vllm_supervisor_gpu_power_watts{HERE}"}, "watt"),
        Panel("Temperature", {"GPU {{gpu}}": f"vllm_supervisor_gpu_temperature_celsius{HERE}"}, "celsius"),
        Panel("Clocks", {"GPU {{gpu}} {{clock}}": f"vllm_supervisor_gpu_clock_hertz{HERE}"}, "hertz"),
        Panel("Held down", {"GPU {{gpu}} {{reason}}": f"vllm_supervisor_gpu_throttled{HERE} == 1"}),
        Panel(
            "PCIe",
            {
                "GPU {{gpu}} generation": f"vllm_supervisor_gpu_pcie_link_generation{HERE}",
                "GPU {{gpu}} lanes": f"vllm_supervisor_gpu_pcie_link_width{HERE}",
            },
        ),
        Panel(
            "Errors",
            {
                "GPU {{gpu}} Xid {{xid}}": f"vllm_supervisor_gpu_xid_errors_total{HERE}",
                "GPU {{gpu}} ECC {{kind}}": f"vllm_supervisor_gpu_ecc_errors_total{HERE}",
            },
        ),
        Panel("Readable", {"GPU {{gpu}}": f"vllm_supervisor_gpu_up{HERE}"}, kind="stat"),
    ),
}
"""The panels by row."""


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": _place(0, top, WIDTH, 1)})
        left, top = 0, top + 1
        height = 0
        for panel in row:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            height = 4 if panel.width < 8 else 8
            panels.append({"id": len(panels) + 1, "gridPos": _place(left, top, panel.width, height), **_panel(panel)})
            left += panel.width
        top += height
    return {
        "uid": "vllm-supervisor",
        "title": "vLLM",
        "tags": ["vllm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _variable("job", ""), _variable("instance", 'job=~"$job"')]},
        "panels": panels,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal" if panel.stack else "none"}, "fillOpacity": 20 if panel.stack else 0}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        defaults["max"] = panel.top
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    options = {"textMode": "name" if panel.title in NAMED else "auto"} if panel.kind == "stat" else {}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for number, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(label: str, where: str) -> dict[str, Any]:
    query = f"label_values(vllm_supervisor_ready{{{where}}}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
