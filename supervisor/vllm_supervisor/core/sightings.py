"""What is seen of a running engine from outside: its processes and GPUs, its counters, an answered request.

These are events like all others; `events` has them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Activity:
    """A sample of what the engine's processes did; totals since launch, None where unknown.

    Bytes and seconds. `worker_cpu_s` is the CPU time of the least busy worker, used or waited for. `engines` has
    CPU time and power for each of several engines by its label, as far as it can be told whose worker and GPU is whose.
    """

    read_bytes: int | None = None
    resident_bytes: int | None = None
    gpu_bytes: int | None = None
    cache_files: int | None = None
    compiler_cpu_s: float | None = None
    worker_cpu_s: float | None = None
    gpu_power_watts: float | None = None
    gpu_power_limit_watts: float | None = None
    gpu_utilization: float | None = None
    connections: int | None = None
    engines: Mapping[str, Activity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """The engine's own counters, as its page showed them that was asked for at `at` (monotonic); None: not shown.

    `engines` has them for each of several engines by its label, and is empty where there is one.
    """

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    iterations: float | None = None
    at: float | None = field(default=None, compare=False)
    engines: Mapping[str, Counted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CanaryDone:
    """The one-token request of ours has ended.

    `engine` is the label of the one that it was meant for; not `known` is one that the server does not (now) have.
    """

    answered: bool
    seconds: float
    detail: str = ""
    engine: str = ""
    known: bool = True
