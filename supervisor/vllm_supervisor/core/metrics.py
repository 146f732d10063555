"""Every metric of ours, declared once, and the snapshot that they are read from.

The exposition, the reference page and the check of alerts and dashboard all use `METRICS`. What a
snapshot does not know is None or missing, and its series is then absent: never zero, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .gpu import GpuTable

PREFIX = "vllm_supervisor_"
WINDOWS = {"10s": 10.0, "60s": 60.0}
"""The windows of the token rates, by label, in seconds."""


class Kind(StrEnum):
    """How Prometheus treats a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration.

    Attributes:
        name: Without the prefix; a counter's ends in `_total`.
        help: One sentence.
        labels: In the order in which values are given.
        kind: Follows from the name.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Counter or gauge."""
        return Kind.COUNTER if self.name.endswith("_total") else Kind.GAUGE

    @property
    def full_name(self) -> str:
        """The name that Prometheus stores."""
        return PREFIX + self.name


_GPU = ("gpu", "uuid", "name")

_DECLARED = (
    Metric("build_info", "Versions of supervisor and engine; always 1.", ("version", "engine_version")),
    Metric("phase", "1 for the phase that the start is in, 0 for every other one.", ("phase",)),
    Metric("ready", "1 while READY=1 stands, else 0."),
    Metric("engine_up", "1 while an engine process of ours lives, else 0."),
    Metric(
        "engine_metrics_expected",
        "1 when the settings put the engine's own metrics on this page; 0 by metrics.engine or --disable-log-stats.",
    ),
    Metric("start_time_seconds", "When this start began, in Unix time."),
    Metric("phase_seconds", "Time spent in each phase of this start so far.", ("phase",)),
    Metric(
        "load_progress_ratio",
        "Progress of the whole start, 0 to 1: by the usual times with a history, else by the bar of its phase.",
    ),
    Metric("load_shards", "Shards of the checkpoint: loaded so far, and in all.", ("state",)),
    Metric("load_eta_seconds", "Time until READY as the history of this instance suggests."),
    Metric("checkpoint_bytes", "The weight files that the engine loads, together."),
    Metric("readahead_ahead_bytes", "Weights that lie in memory for the engine, and that it has not loaded yet."),
    Metric("readahead_bytes_total", "Weights fetched ahead in this start, by where they were.", ("source",)),
    Metric("readahead_hit_ratio", "Share of the weights that was in memory when the engine came to it, 0 to 1."),
    Metric("readahead_disk_bytes_per_second", "Speed of the disk while weights were read ahead from it."),
    Metric("last_load_seconds", "Time from launch to READY of the last successful start."),
    Metric("starts_total", "Starts by how they ended; kept over restarts.", ("outcome",)),
    Metric("failures_total", "Failed starts and failures while serving; kept over restarts.", ("reason", "class")),
    Metric("engine_processes", "Living processes of the engine.", ("role",)),
    Metric("liveness_last_proof_seconds", "Time since the engine last proved that it works."),
    Metric("liveness_engine_last_proof_seconds", "The same of each of several engines (data parallel).", ("engine",)),
    Metric("liveness_engine_hung", "1 while this one of several engines is called hung, else 0.", ("engine",)),
    Metric("probe_seconds", "Duration of the last health probe."),
    Metric("canary_seconds", "Duration of the last one-token request of ours."),
    Metric("canary_failures_total", "One-token requests of ours without an answer."),
    Metric("output_lines_total", "Lines of the engine's output by what they were taken for.", ("kind",)),
    Metric("output_dropped_total", "Lines that the journal did not take; they were classified all the same."),
    Metric("notify_errors_total", "Messages that systemd's socket refused."),
    Metric("generation_tokens_per_second", "Tokens generated, over the window; 0 when idle.", ("window",)),
    Metric("prompt_tokens_per_second", "Prompt tokens finished, over the window; 0 when idle.", ("window",)),
    Metric(
        "kv_cache_tokens",
        "Tokens that the KV cache holds; of several engines together, as far as their page says it (vLLM 0.24).",
    ),
    Metric("kv_cache_bytes_per_token", "KV cache of one token on one GPU."),
    Metric("smoke_success", "1 when the last smoke test passed, 0 when it failed."),
    Metric("smoke_verdict", "1 for the verdict of the last smoke test, 0 for every other one.", ("verdict",)),
    Metric("smoke_seconds", "Duration of the last smoke test."),
    Metric("smoke_first_token_seconds", "Time to the first token in the last smoke test, median of its answers."),
    Metric("smoke_tokens_per_second", "Tokens a second behind the first one in the last smoke test, likewise."),
    Metric("weights_held", "1 while all weights are held by their own unit, else 0.", ("part",)),
    Metric("weights_fit", "1 while what is held fits what this engine's settings want, 0 while it does not."),
    Metric("cluster_rank", "Rank of this node among several that serve one model; 0 is the head."),
    Metric("cluster_node_up", "1 while the head hears this node, else 0; told by the head alone.", ("rank",)),
    Metric("cluster_node_phase", "1 for the phase that this node is in; told by the head alone.", ("rank", "phase")),
    Metric("gpu_up", "1 when the last sample read this GPU, else 0.", _GPU),
    Metric("gpu_samples_total", "Samples of this GPU by outcome: ok, failed.", (*_GPU, "outcome")),
    Metric("gpu_last_sample_timestamp_seconds", "When this GPU was last read, in Unix time.", _GPU),
    Metric("gpu_memory_used_bytes", "GPU memory in use by anybody.", _GPU),
    Metric("gpu_memory_total_bytes", "GPU memory in all.", _GPU),
    Metric("gpu_engine_bytes", "GPU memory that the engine's processes hold.", _GPU),
    Metric("gpu_utilization_ratio", "Share of the last period with a kernel running; a deadlock shows 1.", _GPU),
    Metric("gpu_power_watts", "Power drawn.", _GPU),
    Metric("gpu_power_limit_watts", "Power limit in force.", _GPU),
    Metric("gpu_temperature_celsius", "Temperature of the die.", _GPU),
    Metric("gpu_clock_hertz", "Clock by domain: sm, memory.", (*_GPU, "clock")),
    Metric("gpu_throttled", "1 while the clocks are held down for this reason, else 0.", (*_GPU, "reason")),
    Metric("gpu_xid_errors_total", "Xid events of the driver since the supervisor began.", (*_GPU, "xid")),
    Metric("gpu_ecc_errors_total", "ECC errors over the life of the board: corrected, uncorrected.", (*_GPU, "kind")),
    Metric("gpu_remapped_rows", "Memory rows replaced, by cause; pending and failed are 0 or 1.", (*_GPU, "kind")),
    Metric("gpu_pcie_link_generation", "PCIe generation in use; an idle link drops to 1.", _GPU),
    Metric("gpu_pcie_link_generation_max", "PCIe generation that board and slot can do.", _GPU),
    Metric("gpu_pcie_link_width", "PCIe lanes in use.", _GPU),
    Metric("gpu_pcie_link_width_max", "PCIe lanes that board and slot can do.", _GPU),
    Metric("gpu_pcie_replays_total", "PCIe packets sent again since the driver was loaded.", _GPU),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}
"""Every metric of ours by its name without the prefix."""

FULL_NAMES = frozenset(metric.full_name for metric in _DECLARED)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a scrape shows; the attributes mean what the metrics of the same name say.

    Attributes:
        phase: A value of `Phase`.
        ready: Whether READY=1 stands.
        engine_up: Whether an engine process of ours lives.
        engine_metrics_expected: What the settings say; nothing about whether they are there.
        version: Our own version.
        engine_version: The engine's, empty while unknown.
        start_time_seconds: Unix seconds at which this start began.
        phase_seconds: Seconds by phase.
        load_progress_ratio: 0 to 1.
        load_shards: By state: `loaded`, `total`.
        load_eta_seconds: Seconds.
        checkpoint_bytes: Bytes.
        readahead_ahead_bytes: Bytes.
        readahead_bytes_total: By source: `disk`, `memory`.
        readahead_hit_ratio: 0 to 1.
        readahead_disk_bytes_per_second: Bytes a second.
        last_load_seconds: Seconds.
        starts_total: By outcome.
        failures_total: By (reason, class).
        engine_processes: By role.
        liveness_last_proof_seconds: Seconds.
        liveness_engine_last_proof_seconds: Seconds by engine; empty where there is one.
        liveness_engine_hung: 1 and 0 by engine, likewise.
        probe_seconds: Seconds.
        canary_seconds: Seconds.
        canary_failures_total: A count.
        output_lines_total: By kind of line.
        output_dropped_total: Lines.
        notify_errors_total: Messages.
        generation_tokens_per_second: By a label of `WINDOWS`.
        prompt_tokens_per_second: By a label of `WINDOWS`.
        kv_cache_tokens: Tokens.
        kv_cache_bytes_per_token: Bytes.
        smoke_success: None when no smoke test has run.
        smoke_verdict: 1 and 0 by verdict; empty when nothing was asked.
        smoke_seconds: Seconds.
        smoke_first_token_seconds: Seconds.
        smoke_tokens_per_second: Tokens a second; None for answers of a few tokens.
        weights_held: By part: `engine` where it maps them, `holder` where it holds them; None without.
        weights_fit: None where nothing is held for this engine.
        cluster_rank: None without a cluster.
        cluster_node_up: 1 and 0 by rank, on the head.
        cluster_node_phase: 1 by (rank, phase), on the head.
        gpu: None where no GPU is expected.
        engine_pids: The engine's processes, to tell its GPU memory from other people's.
    """

    phase: str
    ready: bool = False
    engine_up: bool = False
    engine_metrics_expected: bool = True
    version: str = ""
    engine_version: str = ""
    start_time_seconds: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    load_progress_ratio: float | None = None
    load_shards: Mapping[str, float] | None = None
    load_eta_seconds: float | None = None
    checkpoint_bytes: int | None = None
    readahead_ahead_bytes: int | None = None
    readahead_bytes_total: Mapping[str, int] | None = None
    readahead_hit_ratio: float | None = None
    readahead_disk_bytes_per_second: float | None = None
    last_load_seconds: float | None = None
    starts_total: Mapping[str, int] = field(default_factory=dict)
    failures_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    engine_processes: Mapping[str, int] = field(default_factory=dict)
    liveness_last_proof_seconds: float | None = None
    liveness_engine_last_proof_seconds: Mapping[str, float] = field(default_factory=dict)
    liveness_engine_hung: Mapping[str, int] = field(default_factory=dict)
    probe_seconds: float | None = None
    canary_seconds: float | None = None
    canary_failures_total: int = 0
    output_lines_total: Mapping[str, int] = field(default_factory=dict)
    output_dropped_total: int = 0
    notify_errors_total: int = 0
    generation_tokens_per_second: Mapping[str, float | None] = field(default_factory=dict)
    prompt_tokens_per_second: Mapping[str, float | None] = field(default_factory=dict)
    kv_cache_tokens: float | None = None
    kv_cache_bytes_per_token: float | None = None
    smoke_success: bool | None = None
    smoke_verdict: Mapping[str, float] = field(default_factory=dict)
    smoke_seconds: float | None = None
    smoke_first_token_seconds: float | None = None
    smoke_tokens_per_second: float | None = None
    weights_held: Mapping[str, int] | None = None
    weights_fit: bool | None = None
    cluster_rank: int | None = None
    cluster_node_up: Mapping[str, int] = field(default_factory=dict)
    cluster_node_phase: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gpu: GpuTable | None = None
    engine_pids: frozenset[int] = frozenset()
