"""What the history keeps of a start, and the words for a command that cannot be run."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from vllm_supervisor import __version__
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.endpoint import argument
from vllm_supervisor.core.facts import FigureName
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.plan.engine import default_utilization, parse_version
from vllm_supervisor.core.plan.sizes import GIB
from vllm_supervisor.core.readahead.report import figures as kept

if TYPE_CHECKING:
    from vllm_supervisor.core import effects as fx
    from vllm_supervisor.core.state import State

    from .perform import Parts


def record_ready(parts: Parts, state: State) -> None:
    """The start has succeeded: what it took and what it found."""
    figures = {name.value: value for name, value in state.figures.items()} | _memory(parts, state)
    figures |= kept(parts.reading.report)
    parts.history.update(
        ready_at=time.time(),
        outcome="ready",
        engine_version=str(figures.get("engine_version", "")),
        figures=figures,
        gaps={phase.value: round(gap, 3) for phase, gap in state.evidence.gaps.items()},
    )
    parts.history.count("starts", "ready")
    for said in parts.reading.account(state, state.ready_at or 0.0)[:2]:
        parts.log.info(f"where the time went: {said}")


def _memory(parts: Parts, state: State) -> dict[str, float]:
    """The budget that the measured figures belong to, for the next plan."""
    table = parts.gpu_table()
    totals = [s.memory_total_bytes for s in table.samples if s.memory_total_bytes] if table is not None else []
    if not totals:
        return {}
    given = argument(parts.instance.settings.engine.args, "gpu-memory-utilization")
    version = str(state.figures.get(FigureName.ENGINE_VERSION, ""))
    used = float(given) if isinstance(given, (int, float, str)) else default_utilization(parse_version(version))
    return {"gpu_memory_utilization": used, "gpu_total_gib": min(totals) / GIB}


def record_end(parts: Parts, effect: fx.Exit, state: State) -> None:
    """The start is over: how, and why."""
    history, cause = parts.history, effect.cause
    history.update(
        ended_at=time.time(),
        outcome=effect.outcome,
        exit_code=int(effect.code),
        reason=cause.reason if cause else "",
        sentence=effect.sentence,
        incident=parts.incident,
        engine_version=str(state.figures.get("engine_version", "")),  # type: ignore[call-overload]
        **({"class": cause.cause_class.value} if cause else {}),
    )
    if state.ready_at is None:
        history.count("starts", effect.outcome)
    if cause is not None:
        history.count("failures", f"{cause.reason}/{cause.cause_class}")
    level = "info" if effect.outcome == "stopped" else "error"
    getattr(parts.log, level)(f"{effect.sentence} (exit {int(effect.code)})")
    parts.log.debug(f"vllm-supervisor {__version__}, pid {os.getpid()}")


def not_executable(program: str, error: OSError) -> Cause:
    """The cause of a command that the kernel refused to execute."""
    if isinstance(error, FileNotFoundError):
        summary, advice = f"{program} does not exist", "Set engine.command to the vllm program of its environment."
    elif isinstance(error, PermissionError):
        summary = f"{program} cannot be executed by this user"
        advice = "Make the environment with /usr/bin/python3 outside of home directories (see docs/install.md)."
    else:
        summary, advice = f"{program} cannot be started: {error.strerror}", "Look at engine.command."
    return Cause("engine-not-executable", summary=summary, advice=advice, phase=Phase.LAUNCHING)
