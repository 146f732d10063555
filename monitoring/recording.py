"""The recording rules, as data."""
# ruff: noqa: INP001 - a folder of files to run and to deploy, no package

from __future__ import annotations

BEGAN = "last_over_time(vllm_supervisor_start_time_seconds[1h])"
BEGAN_READY = (
    "max_over_time((vllm_supervisor_start_time_seconds and on (job, instance) vllm_supervisor_ready == 1)[1h:30s])"
)
"""When the last start began that was seen, and the last one that was seen ready. A service that was
stopped is not ready either when it is last seen; this tells it from a start that failed."""

RECORDED = {
    "instance:vllm_generation_tokens:rate5m": "sum by (job, instance) (rate(vllm:generation_tokens_total[5m]))",
    "instance:vllm_prompt_tokens:rate5m": "sum by (job, instance) (rate(vllm:prompt_tokens_total[5m]))",
    "instance:vllm_requests_running:sum": "sum by (job, instance) (vllm:num_requests_running)",
    "instance:vllm_requests_waiting:sum": "sum by (job, instance) (vllm:num_requests_waiting)",
    "instance:vllm_kv_cache_usage:max": (
        "max by (job, instance) (vllm:kv_cache_usage_perc) or max by (job, instance) (vllm:gpu_cache_usage_perc)"
    ),
    "instance:vllm_preemptions:rate5m": "sum by (job, instance) (rate(vllm:num_preemptions_total[5m]))",
    "instance:vllm_ttft_seconds:p95_5m": (
        "histogram_quantile(0.95, sum by (job, instance, le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))"
    ),
    "instance:vllm_itl_seconds:p95_5m": (
        "histogram_quantile(0.95, sum by (job, instance, le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))"
    ),
    "instance:vllm_tokens_per_second_busy:median1d": (
        'quantile_over_time(0.5, (sum by (job, instance) (vllm_supervisor_generation_tokens_per_second{window="60s"})'
        " > 0)[1d:1m])"
    ),
    "instance:vllm_gpu_others_bytes:max": (
        "max by (job, instance) (vllm_supervisor_gpu_memory_used_bytes - vllm_supervisor_gpu_engine_bytes)"
    ),
    "instance:vllm_start_without_ready:last1h": (
        f"max by (job, instance) ({BEGAN}) unless on (job, instance)"
        f" (max by (job, instance) ({BEGAN}) == on (job, instance) max by (job, instance) ({BEGAN_READY}))"
    ),
    "instance:vllm_failures:increase2h": (
        "sum by (job, instance, class) (increase(vllm_supervisor_failures_total[2h]))"
    ),
}
"""Recording rules: name and expression."""
