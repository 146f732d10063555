"""From configuration and history to the policy of one start."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_supervisor.core.endpoint import argument
from vllm_supervisor.core.phases import DEFAULT_BUDGETS, Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.retry import PastStart, learnt_budgets, row_of_failures, usual_phases, wait_before

if TYPE_CHECKING:
    from .instance import Instance


def build_policy(
    instance: Instance,
    past: Sequence[PastStart],
    *,
    watchdog_s: float | None,
    boot_id: str,
    now: float,
    engine_version: str = "",
) -> Policy:
    """The policy of the start that begins now.

    Only systemd starts again by itself, so only there (INVOCATION_ID) does a row of failures go on;
    a run in the foreground is a person's.
    """
    settings = instance.settings
    config_hash = instance.config_hash()
    failures, reason = 0, ""
    if os.environ.get("INVOCATION_ID"):
        row = row_of_failures(past, now, boot_id)
        failures, reason = row.failures, row.last_reason
    budgets = learnt_budgets(past, config_hash)
    for phase in DEFAULT_BUDGETS:
        own = getattr(settings.stall, phase.value.replace("-", "_"))
        if own is not None:
            budgets[phase] = own
    if settings.smoke.on_start == "require" and settings.stall.verifying is None:
        # READY waits for every answer, and nothing but the last of them is progress.
        least = settings.smoke.timeout_s * (1 + len(settings.smoke.questions))
        budgets[Phase.VERIFYING] = max(budgets[Phase.VERIFYING], least)
    return Policy(
        budgets=budgets,
        expected=usual_phases(past, config_hash),
        attempt=failures + 1,
        max_attempts=settings.retry.max_attempts,
        wait_s=wait_before(failures, settings.retry.first_wait_s, settings.retry.max_wait_s),
        last_reason=reason,
        load_wait_s=settings.load.wait_s,
        watchdog_s=watchdog_s,
        probe=settings.readiness.probe,
        hidden_line_after_s=settings.readiness.hidden_line_after_s,
        smoke=settings.smoke.on_start if settings.readiness.probe == "generate" else "off",
        grace_s=settings.stop.grace_s,
        drain_s=settings.stop.drain_s,
        engine_drains="shutdown-timeout" in arguments_of_ours(instance, engine_version)
        or argument(settings.engine.args, "shutdown-timeout") is not None,
        stop_wait_s=settings.stop.kill_after_s,
        liveness=settings.liveness.mode,
        hang_after_s=settings.liveness.hang_after_s,
        canary_every_s=settings.liveness.canary_every_s,
        accelerated=settings.engine.device == "cuda",
        nnodes=settings.cluster.nnodes,
        node_rank=settings.cluster.place,
    )


def arguments_of_ours(instance: Instance, engine_version: str = "") -> dict[str, str | bool]:
    """Arguments that the supervisor adds to the engine's own.

    `--shutdown-timeout` lets vLLM finish running requests on SIGTERM, while it refuses new ones
    (since 0.18, F3.2); an older engine is drained from outside, by waiting until it is idle.
    `--headless` makes an engine part of another node's (F8.1).
    """
    settings = instance.settings
    if settings.cluster.place:
        return {"headless": True}
    known = re.match(r"(\d+)\.(\d+)", engine_version)
    if known is None or (int(known[1]), int(known[2])) < (0, 18) or settings.stop.drain_s <= 0:
        return {}
    if argument(settings.engine.args, "shutdown-timeout") is not None:
        return {}
    return {"shutdown-timeout": str(round(settings.stop.drain_s))}
