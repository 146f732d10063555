"""Declarations and readings: every metric has a value somewhere, and what is unknown has none."""

import re

import pytest

from vllm_supervisor.core.causes import REASONS
from vllm_supervisor.core.gpu import GpuLost, GpuRecord, GpuSample, GpuTable
from vllm_supervisor.core.metrics import FULL_NAMES, METRICS, PREFIX, Kind, Snapshot
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.readings import readings

CARD = GpuSample(
    index=0,
    uuid="GPU-a",
    name="card",
    memory_used_bytes=2000,
    memory_total_bytes=4000,
    processes=((10, 1500), (99, 100)),
    utilization_ratio=1.0,
    power_watts=122.0,
    power_limit_watts=600.0,
    temperature_celsius=50.0,
    clocks_hertz={"sm": 2e9, "memory": 1e9},
    throttled={"hw-thermal": True, "sync-boost": False},
    ecc_errors={"corrected": 3, "uncorrected": 0},
    pcie_link_generation=5,
    pcie_link_width=16,
    pcie_link_generation_max=5,
    pcie_link_width_max=16,
    pcie_replays=7,
    remapped_rows={"corrected": 0, "uncorrected": 1, "pending": 1, "failed": 0},
)
UP = GpuRecord(0, "GPU-a", "card", up=True, samples={"ok": 2, "failed": 0}, last_sample=1e9, xid_errors={94: 2})
DOWN = GpuRecord(1, "GPU-b", "card", samples={"ok": 1, "failed": 1}, last_sample=9e8, xid_errors={79: 1})
TABLE = GpuTable((CARD,), 1.0, True, "", (GpuLost(1, "GPU-b", "card", "lost"),), (UP, DOWN))
FULL = Snapshot(
    phase="ready",
    ready=True,
    engine_up=True,
    version="0.1.0",
    engine_version="0.32.0",
    start_time_seconds=1.7e9,
    phase_seconds={"preflight": 1.5, "loading-weights": 520.0},
    load_progress_ratio=0.5,
    load_shards={"loaded": 54, "total": 119},
    load_eta_seconds=280.0,
    checkpoint_bytes=540 << 30,
    readahead_ahead_bytes=300 << 30,
    readahead_bytes_total={"disk": 280 << 30, "memory": 20 << 30},
    readahead_hit_ratio=0.97,
    readahead_disk_bytes_per_second=3.1e9,
    last_load_seconds=600.0,
    starts_total={"ready": 3, "failed": 1},
    failures_total={("gpu-busy", "transient"): 1},
    engine_processes={"api-server": 1, "worker": 8},
    liveness_last_proof_seconds=0.5,
    liveness_engine_last_proof_seconds={"0": 1.0, "1": 70.0},
    liveness_engine_hung={"0": 0, "1": 1},
    probe_seconds=0.1,
    canary_seconds=0.2,
    canary_failures_total=1,
    output_lines_total={"progress": 119, "other": 5},
    output_dropped_total=2,
    notify_errors_total=0,
    generation_tokens_per_second={"10s": 57.0, "60s": 50.0},
    prompt_tokens_per_second={"10s": 0.0, "60s": None},
    kv_cache_tokens=252000.0,
    kv_cache_bytes_per_token=70272.0,
    smoke_success=True,
    smoke_verdict={"right": 1.0, "wrong": 0.0},
    smoke_seconds=7.0,
    smoke_first_token_seconds=0.2,
    smoke_tokens_per_second=57.0,
    weights_held={"engine": 1},
    weights_fit=True,
    cluster_rank=0,
    cluster_node_up={"0": 1, "1": 0},
    cluster_node_phase={("0", "waiting"): 1.0},
    gpu=TABLE,
    engine_pids=frozenset({10}),
)


def values(snapshot):
    return {(metric.name, *labels): value for metric, series in readings(snapshot) for labels, value in series}


def test_a_full_snapshot_gives_every_declared_metric():
    assert {metric.name for metric, _ in readings(FULL)} == set(METRICS)


def test_every_series_has_a_value_for_each_label():
    for metric, series in readings(FULL):
        for labels, value in series:
            assert len(labels) == len(metric.labels), metric.name
            assert all(isinstance(label, str) for label in labels), metric.name
            assert isinstance(value, float), metric.name
        assert len({labels for labels, _ in series}) == len(series), metric.name


def test_some_values():
    got = values(FULL)
    assert got["gpu_engine_bytes", "0", "GPU-a", "card"] == 1500.0
    assert got["failures_total", "gpu-busy", "transient"] == 1.0
    assert got["load_shards", "loaded"] == 54.0
    assert got["generation_tokens_per_second", "60s"] == 50.0
    assert got["prompt_tokens_per_second", "10s"] == 0.0
    assert ("prompt_tokens_per_second", "60s") not in got
    assert got["build_info", "0.1.0", "0.32.0"] == 1.0
    assert got["gpu_throttled", "0", "GPU-a", "card", "hw-thermal"] == 1.0


def test_every_failure_is_counted_from_the_beginning_so_that_the_first_one_is_an_increase():
    bare, full = values(Snapshot(phase="preflight")), values(FULL)
    assert {key[1:]: value for key, value in bare.items() if key[0] == "failures_total"} == {
        (reason, kind.value): 0.0 for reason, kind in REASONS.items() if reason != "healthy"
    }
    assert full["failures_total", "gpu-busy", "transient"] == 1.0


@pytest.mark.parametrize("phase", list(Phase))
def test_the_phase_is_one_of_all(phase):
    got = {key[1]: value for key, value in values(Snapshot(phase=phase.value)).items() if key[0] == "phase"}
    assert got == {other.value: float(other is phase) for other in Phase}


def test_what_a_bare_snapshot_does_not_know_is_absent_and_not_zero():
    assert {metric.name for metric, _ in readings(Snapshot(phase="preflight"))} == {
        "build_info",
        "phase",
        "ready",
        "engine_up",
        "engine_metrics_expected",
        "failures_total",
        "canary_failures_total",
        "output_dropped_total",
        "notify_errors_total",
    }


def test_an_engine_whose_metrics_are_left_out_is_told_as_such():
    assert values(Snapshot(phase="ready"))["engine_metrics_expected",] == 1.0
    assert values(Snapshot(phase="ready", engine_metrics_expected=False))["engine_metrics_expected",] == 0.0


def test_a_lost_gpu_keeps_only_that_it_is_down_and_what_was_counted():
    lost = {key for key in values(FULL) if "GPU-b" in key}
    assert {key[0] for key in lost} == {
        "gpu_up",
        "gpu_samples_total",
        "gpu_last_sample_timestamp_seconds",
        "gpu_xid_errors_total",
    }
    assert values(FULL)["gpu_up", "1", "GPU-b", "card"] == 0.0


def test_a_card_that_answers_little_has_little():
    table = GpuTable((GpuSample(0, "GPU-a", "card", power_watts=40.0),), 1.0, True, "", (), (UP,))
    names = {metric.name for metric, _ in readings(Snapshot(phase="ready", gpu=table))}
    assert {name for name in names if name.startswith("gpu_")} == {
        "gpu_up",
        "gpu_samples_total",
        "gpu_last_sample_timestamp_seconds",
        "gpu_xid_errors_total",
        "gpu_power_watts",
    }


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_declarations_follow_the_rules_of_names(metric):
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert metric.full_name == PREFIX + metric.name
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert not {"pid", "command", "cmdline", "le", "quantile"} & set(metric.labels)
    assert len(set(metric.labels)) == len(metric.labels)


def test_no_name_is_declared_twice():
    from vllm_supervisor.core import metrics

    assert len(metrics._DECLARED) == len(METRICS) == len(FULL_NAMES)
