"""What a start is decided by: the settings and the past, as one frozen value.

The daemon builds it once from the configuration, the history and the unit; a recording carries it
in its first line, so that `replay` decides exactly as the field did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .phases import DEFAULT_BUDGETS, Phase

EXTEND_MARGIN_S = 60.0
"""How much longer than our own stall budget systemd is asked to wait, in seconds (design 6)."""

EXTEND_EVERY_S = 5.0
"""EXTEND_TIMEOUT_USEC is sent at most this often, in seconds."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that decisions depend on and that does not change during a start.

    All durations are seconds.

    Attributes:
        budgets: Seconds without evidence after which a phase counts as stalled.
        expected: Usual length of each phase in this instance's successful starts; empty without history.
        attempt: Number of this start in the row of transient failures, from 1.
        max_attempts: The start of this number is the last one.
        wait_s: Announced pause before this start; 0 for the first.
        last_reason: Why the start before this one failed; empty for the first.
        load_wait_s: Longest wait for other instances of the machine to finish loading.
        systemd_start_timeout_s: TimeoutStartSec of the unit.
        watchdog_s: WATCHDOG_USEC in seconds; None when systemd does not watch.
        engine_drains: The engine was given `--shutdown-timeout` and finishes requests on SIGTERM itself.
        accelerated: The engine runs on GPUs, so that power can prove life.
        nnodes: So many machines serve the model together.
        node_rank: Which of them this is; 0 is the head, and only it has a port.
    """

    budgets: Mapping[Phase, float] = field(default_factory=lambda: dict(DEFAULT_BUDGETS))
    expected: Mapping[Phase, float] = field(default_factory=dict)
    attempt: int = 1
    max_attempts: int = 5
    wait_s: float = 0.0
    last_reason: str = ""
    load_wait_s: float = 1800.0
    systemd_start_timeout_s: float = 180.0
    watchdog_s: float | None = None
    probe: Literal["generate", "embed", "score", "http"] = "generate"
    hidden_line_after_s: float = 60.0
    smoke: Literal["off", "report", "require"] = "report"
    grace_s: float = 0.0
    drain_s: float = 30.0
    engine_drains: bool = False
    stop_wait_s: float = 20.0
    liveness: Literal["restart", "report", "off"] = "restart"
    hang_after_s: float = 60.0
    canary_every_s: float = 300.0
    accelerated: bool = True
    nnodes: int = 1
    node_rank: int = 0
