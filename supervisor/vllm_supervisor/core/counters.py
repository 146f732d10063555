"""The few figures of the engine's own /metrics that the supervisor judges by.

A light scan for the needed lines: the official parser takes 7 ms for a page of vLLM, too much for
every two seconds. Several engines (data parallel) are read one by one and summed; the KV usage is
their mean and their maximum. What the page does not have is None: `--disable-log-stats` takes
everything away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
        created: Unix seconds at which the counter of generated tokens began: a new value means that it began again;
            None in multiprocess mode, and for several engines together, which may have begun at any time.
        engines: The same figures of each engine by its label; empty in the figures of one engine.
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
    engines: Mapping[str, EngineCounters] = field(default_factory=dict)

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
    found: dict[str, dict[str, list[float]]] = {}
    for match in _LINE.finditer(page):
        name, labels = match[1].decode(), dict(_LABEL.findall(match[2] or b""))
        written = labels.get(b"kv_cache_size_tokens", b"") if name == _CACHE_INFO else match[3]
        if (value := _number(written)) is not None:
            engine = labels.get(b"engine", b"").decode(errors="replace")
            found.setdefault(engine, {}).setdefault(name, []).append(value)
    engines = {engine: _one(values) for engine, values in found.items()}
    return _together(engines)


def _one(values: dict[str, list[float]]) -> EngineCounters:
    """The figures of one engine."""
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
        kv_cache_tokens=values[_CACHE_INFO][-1] if _CACHE_INFO in values else None,
        created=max(values.get(_CREATED, ()), default=None),
    )


def _together(engines: Mapping[str, EngineCounters]) -> EngineCounters:
    """The figures of all engines; only those that count tokens are engines of their own."""
    every = engines.values()
    means = [one.kv_usage_mean for one in every if one.kv_usage_mean is not None]
    counting = {label: one for label, one in engines.items() if one.counted}
    return EngineCounters(
        generation_tokens=_sum(one.generation_tokens for one in every),
        prompt_tokens=_sum(one.prompt_tokens for one in every),
        running=_sum(one.running for one in every),
        waiting=_sum(one.waiting for one in every),
        kv_usage_mean=sum(means) / len(means) if means else None,
        kv_usage_max=max((one.kv_usage_max for one in every if one.kv_usage_max is not None), default=None),
        iterations=_sum(one.iterations for one in every),
        preemptions=_sum(one.preemptions for one in every),
        finished=_sum(one.finished for one in every),
        kv_cache_tokens=_sum(one.kv_cache_tokens for one in every),
        created=next(iter(counting.values())).created if len(counting) == 1 else None,
        engines=counting,
    )


def _number(text: bytes) -> float | None:
    """A finite number, else None; the page also says NaN and "None"."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _sum(values: Iterable[float | None] | None) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values or () if value is not None]
    return sum(known) if known else None
