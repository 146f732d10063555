"""Alerts on starts and on the engine that serves.

A failed process is never scraped, so a start that failed for good shows as a target that is down
and whose last start was never seen ready. `by (job, instance)` stands wherever the supervisor's series
meet the engine's, whose labels differ.
"""
# ruff: noqa: INP001 - a folder of files to run and to deploy, no package

from __future__ import annotations

from alert import Alert

_GONE = "max by (job, instance) (up == 0)"
_NOT_READY_BEFORE = "instance:vllm_start_without_ready:last1h"
_ROW = "(sum by (job, instance) (increase(vllm_supervisor_failures_total{class='transient'}[2h])) >= 2)"
_LOADING = "vllm_supervisor_phase{phase='loading-weights'}"
NOT_LOADING = "preflight|waiting|ready|draining|stopping|stopped|failed"
"""The phases in which no engine is being started; a test compares it with the supervisor's own."""


def _failed(reasons: str, window: str = "15m") -> str:
    counted = f'increase(vllm_supervisor_failures_total{{reason=~"{reasons}"}}[{window}])'
    return f"sum by (job, instance, reason) ({counted}) > 0"


ALERTS = {
    "start": (
        Alert(
            "VllmStartSlow",
            f"sum by (job, instance) (vllm_supervisor_phase_seconds{{phase!~'{NOT_LOADING}'}})"
            " > on (job, instance) 1.5 * vllm_supervisor_last_load_seconds"
            " and on (job, instance) vllm_supervisor_ready == 0 and on (job, instance) vllm_supervisor_engine_up == 1",
            "1m",
            "warning",
            "The start of {{ $labels.instance }} takes more than 1.5 times as long as the last one.",
        ),
        Alert(
            "VllmLoadStuck",
            f"{_LOADING} == 1 and on (job, instance) {_LOADING} offset 3m == 1"
            " and on (job, instance) vllm_supervisor_load_shards{state='loaded'}"
            " < on (job, instance) vllm_supervisor_load_shards{state='total'}"
            " and on (job, instance) changes(vllm_supervisor_load_shards{state='loaded'}[3m]) == 0",
            "1m",
            "warning",
            "No shard of the weights has been finished on {{ $labels.instance }} for three minutes.",
        ),
        Alert(
            "VllmLoadStalled",
            _failed("load-stalled|not-answering"),
            "0m",
            "critical",
            "A start on {{ $labels.instance }} was given up: {{ $labels.reason }}.",
        ),
        Alert(
            "VllmRestartLoop",
            "instance:vllm_failures:increase2h >= 3",
            "0m",
            "critical",
            "{{ $labels.instance }} failed three times in two hours, class {{ $labels.class }}.",
        ),
        Alert(
            "VllmGaveUp",
            f"{_GONE} and on (job, instance) {_NOT_READY_BEFORE} and on (job, instance) {_ROW}",
            "2m",
            "critical",
            "{{ $labels.instance }} gave up after repeated failures; nothing will start it again.",
        ),
        Alert(
            "VllmFailedForGood",
            f"{_GONE} and on (job, instance) {_NOT_READY_BEFORE} unless on (job, instance) {_ROW}",
            "2m",
            "critical",
            "The start of {{ $labels.instance }} failed and nothing will start it again.",
        ),
        Alert(
            "VllmSupervisorDown",
            f"{_GONE} unless on (job, instance) {_NOT_READY_BEFORE}",
            "5m",
            "critical",
            "{{ $labels.instance }} does not answer a scrape.",
        ),
        Alert(
            "VllmNotReady",
            "vllm_supervisor_ready == 0",
            "45m",
            "warning",
            "{{ $labels.instance }} has not been ready for 45 minutes.",
        ),
        Alert(
            "VllmSmokeTestFailed",
            "vllm_supervisor_smoke_success == 0",
            "1m",
            "critical",
            "The model on {{ $labels.instance }} answers, but wrongly.",
        ),
    ),
    "weights": (
        Alert(
            "VllmWeightsNotHeld",
            'vllm_supervisor_weights_held{part="engine"} == 0',
            "15m",
            "warning",
            "The weights of {{ $labels.instance }} have not been held by their own unit for 15 minutes.",
        ),
        Alert(
            "VllmWeightsDoNotFit",
            "vllm_supervisor_weights_fit == 0",
            "5m",
            "warning",
            "The weights that are held for {{ $labels.instance }} are not those that its settings want.",
        ),
    ),
    "cluster": (
        Alert(
            "VllmNodeMissing",
            "vllm_supervisor_cluster_node_up == 0",
            "5m",
            "critical",
            "The node of rank {{ $labels.rank }} has not been heard by {{ $labels.instance }} for five minutes.",
        ),
    ),
    "serving": (
        Alert(
            "VllmHung",
            _failed("engine-hung"),
            "0m",
            "critical",
            "The engine on {{ $labels.instance }} hung and was ended.",
        ),
        Alert(
            "VllmOneEngineHung",
            "vllm_supervisor_liveness_engine_hung == 1",
            "0m",
            "critical",
            "Engine {{ $labels.engine }} on {{ $labels.instance }} hangs, and is left as it is.",
        ),
        Alert(
            "VllmNoProofOfLife",
            "vllm_supervisor_liveness_last_proof_seconds > 90 and on (job, instance) vllm_supervisor_ready == 1"
            " and on (job, instance) instance:vllm_requests_running:sum + instance:vllm_requests_waiting:sum > 0",
            "0m",
            "warning",
            "The engine on {{ $labels.instance }} has work and has shown no sign of life for 90 s.",
        ),
        Alert(
            "VllmCanaryFailing",
            "increase(vllm_supervisor_canary_failures_total[15m]) >= 2",
            "0m",
            "warning",
            "Requests of the supervisor's own are not answered on {{ $labels.instance }}.",
        ),
        Alert(
            "VllmSlowWhileRequestsWait",
            'sum by (job, instance) (vllm_supervisor_generation_tokens_per_second{window="60s"})'
            " < 0.5 * instance:vllm_tokens_per_second_busy:median1d"
            " and on (job, instance) instance:vllm_requests_waiting:sum > 0",
            "5m",
            "warning",
            "Requests wait on {{ $labels.instance }} while it gives half its usual tokens per second.",
        ),
        Alert(
            "VllmKvCacheFull",
            "instance:vllm_kv_cache_usage:max > 0.95",
            "10m",
            "warning",
            "The KV cache of {{ $labels.instance }} has been full for ten minutes.",
        ),
        Alert(
            "VllmPreemptions",
            "instance:vllm_preemptions:rate5m > 0.1",
            "10m",
            "warning",
            "{{ $labels.instance }} puts requests back for want of KV cache and works on them twice.",
        ),
        Alert(
            "VllmServerErrors",
            'sum by (job, instance) (rate(http_requests_total{status="5xx"}[5m]))'
            " > 0.05 * sum by (job, instance) (rate(http_requests_total[5m]))",
            "5m",
            "warning",
            "More than 5 % of the answers of {{ $labels.instance }} are server errors.",
        ),
        Alert(
            "VllmEngineMetricsMissing",
            "vllm_supervisor_ready == 1 and on (job, instance) vllm_supervisor_engine_metrics_expected == 1"
            " unless on (job, instance) vllm:generation_tokens_total",
            "5m",
            "warning",
            "{{ $labels.instance }} serves, but the engine's own metrics are missing.",
        ),
    ),
}
"""The alerts by group."""
