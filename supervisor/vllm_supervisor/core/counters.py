"""The few figures of the engine's own /metrics that the supervisor judges by.

A light scan for the needed lines: the official parser takes 7 ms for a page of vLLM, too much for
every two seconds. Several engines (data parallel) are summed; the KV usage is their mean and their
maximum. What the page does not have is None: `--disable-log-stats` takes everything away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OLD_NAMES = {
    # name until then: name since (0.10.x has both, 0.13 only the new ones)
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    # 0.10.2 brought the new one, 0.16 has no old one any more
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
}
"""Every name of vLLM's metrics that changed: the old one and what it is called now."""

_GENERATION = "vllm:generation_tokens_total"
_CREATED = "vllm:generation_tokens_created"
_PROMPT = "vllm:prompt_tokens_total"
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_ITERATIONS = "vllm:iteration_tokens_total_count"
_PREEMPTIONS = "vllm:num_preemptions_total"
_FINISHED = "vllm:request_success_total"
_CACHE_INFO = "vllm:cache_config_info"

READ = (
    _GENERATION,
    _CREATED,
    _PROMPT,
    _RUNNING,
    _WAITING,
    _KV_USAGE,
    _ITERATIONS,
    _PREEMPTIONS,
    _FINISHED,
    _CACHE_INFO,
)
"""The names that are read, as they are called now."""

_WANTED = (*READ, *(old for old, new in OLD_NAMES.items() if new in READ))
_LABELS = rb'\{((?:[^"}\n]|"(?:[^"\\\n]|\\[^\n])*+")*+)\}'
_LINE = re.compile(
    rb"^(" + b"|".join(re.escape(name).encode() for name in _WANTED) + rb")(?:" + _LABELS + rb")?[ \t]+([^ \t\n\r]+)",
    re.MULTILINE,
)
_LABEL = re.compile(rb'(?:^|,)[ \t]*([a-zA-Z_]\w*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """One reading of the engine's page; None where the page does not have it.

    Attributes:
        generation_tokens: Tokens generated since the engine began.
        prompt_tokens: Prompt tokens of finished prefills; one long prefill moves it only at its end.
        running: Requests being worked on, when the engine last took a step; frozen in a hung one.
        waiting: Requests in the queue, likewise.
        kv_usage_mean: Share of the KV cache in use, 0 to 1, mean of the engines.
        kv_usage_max: The same of the fullest engine.
        iterations: Steps of the engine that gave something.
        preemptions: Requests put back for want of KV cache.
        finished: Requests that ended, however they ended.
        kv_cache_tokens: Tokens that all engines' KV caches hold together (from 0.24).
        created: Unix seconds at which the youngest counter began: a new value means a new engine;
            None in multiprocess mode.
        engines: How many engines the page shows.
    """

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_max: float | None = None
    iterations: float | None = None
    preemptions: float | None = None
    finished: float | None = None
    kv_cache_tokens: float | None = None
    created: float | None = None
    engines: int = 0

    @property
    def counted(self) -> bool:
        """Whether the engine counts at all; false under `--disable-log-stats`."""
        return self.generation_tokens is not None


def read_counters(text: bytes | str) -> EngineCounters:
    """Read the engine's page.

    Args:
        text: The body of /metrics in the text format, of any vLLM version.
    """
    page = text.encode() if isinstance(text, str) else text
    values: dict[str, list[float]] = {}
    engines: set[bytes] = set()
    cache_tokens: dict[bytes, float] = {}
    for match in _LINE.finditer(page):
        name = match[1].decode()
        labels = match[2] or b""
        if name == _CACHE_INFO:
            given = dict(_LABEL.findall(labels))
            if (tokens := _number(given.get(b"kv_cache_size_tokens", b""))) is not None:
                cache_tokens[given.get(b"engine", b"")] = tokens
        elif (value := _number(match[3])) is not None:
            values.setdefault(name, []).append(value)
            if name == _GENERATION:
                engines.add(dict(_LABEL.findall(labels)).get(b"engine", b""))
    for old, new in OLD_NAMES.items():
        if old in values:
            values.setdefault(new, values[old])
    usage = values.get(_KV_USAGE)
    return EngineCounters(
        generation_tokens=_sum(values.get(_GENERATION)),
        prompt_tokens=_sum(values.get(_PROMPT)),
        running=_sum(values.get(_RUNNING)),
        waiting=_sum(values.get(_WAITING)),
        kv_usage_mean=sum(usage) / len(usage) if usage else None,
        kv_usage_max=max(usage) if usage else None,
        iterations=_sum(values.get(_ITERATIONS)),
        preemptions=_sum(values.get(_PREEMPTIONS)),
        finished=_sum(values.get(_FINISHED)),
        kv_cache_tokens=_sum(list(cache_tokens.values())),
        created=max(values.get(_CREATED, ()), default=None),
        engines=len(engines),
    )


def _number(text: bytes) -> float | None:
    """A finite number, else None; the page also says NaN and "None"."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _sum(values: list[float] | None) -> float | None:
    return sum(values) if values else None
