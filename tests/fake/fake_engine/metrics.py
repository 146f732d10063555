"""/metrics in the names of a version."""

from __future__ import annotations

import os
import time

from .model import BLOCKS, Counts

TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
STEP = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
LATENCY = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)


class Page:
    """The text of one scrape."""

    def __init__(self, model: str, minor: int, created: float) -> None:
        quoted = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._model, self._minor, self._created = quoted, minor, created
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def head(self, name: str, kind: str, words: str) -> None:
        self._lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, labels: str = "") -> None:
        inner = f'{{engine="0",{labels}model_name="{self._model}"}}'
        self._lines.append(f"{name}{inner} {float(value)!r}")

    def plain(
        self, name: str, kind: str, value: float, labels: str = "", words: str = "A figure of the process."
    ) -> None:
        self.head(name, kind, words)
        self._lines.append(f"{name}{labels} {float(value)!r}")

    def gauge(self, name: str, value: float, words: str) -> None:
        self.head(f"vllm:{name}", "gauge", words)
        self.sample(f"vllm:{name}", value)

    def counter(self, name: str, values: dict[str, float], words: str) -> None:
        """A counter with one sample for each piece of label text."""
        self.head(f"vllm:{name}_total", "counter", words)
        for labels, value in values.items():
            self.sample(f"vllm:{name}_total", value, labels)
        self.head(f"vllm:{name}_created", "gauge", words)
        for labels in values:
            self.sample(f"vllm:{name}_created", self._created, labels)

    def histogram(self, name: str, edges: tuple[float, ...], count: float, total: float, words: str) -> None:
        """A histogram whose observations all have their mean's size."""
        self.head(f"vllm:{name}", "histogram", words)
        mean = total / count if count else 0.0
        for edge in edges:
            self.sample(f"vllm:{name}_bucket", count if mean <= edge else 0.0, f'le="{edge}",')
        self.sample(f"vllm:{name}_bucket", count, 'le="+Inf",')
        self.sample(f"vllm:{name}_count", count)
        self.sample(f"vllm:{name}_sum", total)
        self.head(f"vllm:{name}_created", "gauge", words)
        self.sample(f"vllm:{name}_created", self._created)


def page(counts: Counts, model: str, minor: int, max_len: int, *, engine_stats: bool = True) -> str:
    """The whole page; without `engine_stats` only what the process itself counts (--disable-log-stats)."""
    out = Page(model, minor, counts.created)
    out.plain(
        "python_info", "gauge", 1, '{implementation="CPython",major="3",minor="12",patchlevel="3",version="3.12.3"}'
    )
    out.plain("process_resident_memory_bytes", "gauge", 1103097856)
    out.plain("process_start_time_seconds", "gauge", counts.created)
    out.plain("process_cpu_seconds_total", "counter", time.process_time())
    out.plain("process_virtual_memory_bytes", "gauge", 31738839040)
    out.plain("process_max_fds", "gauge", 20000)
    out.plain("process_open_fds", "gauge", len(os.listdir("/proc/self/fd")))
    if engine_stats:
        _engine(out, counts, minor, max_len)
    if counts.http:
        out.head("http_requests_total", "counter", "Total number of requests by method, status and handler.")
        for (handler, method, status), number in counts.http.items():
            out._lines.append(
                f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} {float(number)!r}'
            )
    return out.text()


def _engine(out: Page, counts: Counts, minor: int, max_len: int) -> None:
    out.gauge("num_requests_running", counts.running, "Number of requests in model execution batches.")
    out.gauge("num_requests_waiting", counts.waiting, "Number of requests waiting to be processed.")
    if minor >= 20:
        out.head("vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason.")
        out.sample("vllm:num_requests_waiting_by_reason", counts.waiting, 'reason="capacity",')
        out.sample("vllm:num_requests_waiting_by_reason", 0, 'reason="deferred",')
    if minor >= 12:
        out.head("vllm:engine_sleep_state", "gauge", "Engine sleep state.")
        for state in ("awake", "weights_offloaded", "discard_all"):
            out.sample("vllm:engine_sleep_state", state == "awake", f'sleep_state="{state}",')
    out.gauge("kv_cache_usage_perc", counts.kv_usage, "KV-cache usage. 1 means 100 percent usage.")
    if minor <= 10:
        out.gauge("gpu_cache_usage_perc", counts.kv_usage, "GPU KV-cache usage. 1 means 100 percent usage.")
    out.counter("prefix_cache_queries", {"": counts.prompt}, "Prefix cache queries, in tokens.")
    out.counter("prefix_cache_hits", {"": 0.0}, "Prefix cache hits, in tokens.")
    for source in ("external_prefix_cache", "mm_cache") if minor >= 12 else ():
        for what in ("queries", "hits"):
            out.counter(f"{source}_{what}", {"": 0.0}, "Cache figures, in tokens.")
    out.counter("num_preemptions", {"": counts.preemptions}, "Cumulative number of preemptions.")
    out.counter("prompt_tokens", {"": counts.prompt}, "Number of prefill tokens processed.")
    if minor >= 16:
        sources = {
            'source="local_compute",': counts.prompt,
            'source="local_cache_hit",': 0.0,
            'source="external_kv_transfer",': 0.0,
        }
        out.counter("prompt_tokens_by_source", sources, "Number of prompt tokens by source.")
    out.counter("generation_tokens", {"": counts.generated}, "Number of generation tokens processed.")
    reasons = {f'finished_reason="{each}",': float(number) for each, number in counts.finished.items()}
    out.counter("request_success", reasons, "Count of successfully processed requests.")
    number = counts.requests()
    out.histogram(
        "iteration_tokens_total", STEP, counts.steps, counts.generated + counts.prompt, "Tokens per engine step."
    )
    out.histogram(
        "time_to_first_token_seconds", TTFT, number, counts.first_token_sum, "Time to first token in seconds."
    )
    between = "inter_token_latency_seconds" if minor > 10 else "time_per_output_token_seconds"
    gaps = max(counts.generated - number, 0.0)
    out.histogram(
        between, TTFT, gaps, max(counts.latency_sum - counts.first_token_sum, 0.0), "Time between tokens in seconds."
    )
    out.histogram("e2e_request_latency_seconds", LATENCY, number, counts.latency_sum, "Request latency in seconds.")
    out.histogram("request_prompt_tokens", STEP, number, counts.prompt, "Prefill tokens of a request.")
    out.histogram("request_generation_tokens", STEP, number, counts.generated, "Generation tokens of a request.")
    for name in ("queue", "prefill", "decode", "inference"):
        spent = {"queue": 0.0, "prefill": counts.first_token_sum}.get(name, counts.latency_sum)
        out.histogram(f"request_{name}_time_seconds", LATENCY, number, spent, "Seconds of a request in that state.")
    if minor > 10:
        each = counts.latency_sum / max(counts.generated, 1.0)
        out.histogram("request_time_per_output_token_seconds", TTFT, number, each * number, "Mean seconds a token.")
    if minor >= 32:
        reasons = dict.fromkeys(('reason="max_num_queued_reqs",', 'reason="max_num_queued_tokens",'), 0.0)
        out.counter("admission_rejections", reasons, "Requests rejected by admission control.")
    labels = f'block_size="16",cache_dtype="auto",enable_prefix_caching="True",gpu_memory_utilization="0.95",num_gpu_blocks="{BLOCKS}"'
    if minor >= 24:
        labels += f',kv_cache_max_concurrency="{BLOCKS * 16 / max_len:.4f}",kv_cache_size_tokens="{BLOCKS * 16}"'
    out.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.")
    out._lines.append(f'vllm:cache_config_info{{{labels},engine="0"}} 1.0')
