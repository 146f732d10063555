"""The slow parts of an ending: saving what is known, killing, looking for what is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.adapters import shared_memory
from vllm_supervisor.adapters.processes import reap, title
from vllm_supervisor.core.events import Swept
from vllm_supervisor.core.gpu import engine_bytes
from vllm_supervisor.core.recording import encode

if TYPE_CHECKING:
    from vllm_supervisor.core.effects import SaveIncident
    from vllm_supervisor.core.state import State

    from .perform import Parts

STACKS_S = 1.5
"""Time for the interpreters of a hung engine to print their stacks on SIGABRT."""

SWEEP_PAUSE_S = 0.1
GPU_FRESH_S = 3.0
"""A GPU table older than this says nothing about what is left."""


async def sweep(parts: Parts, *, kill: bool) -> None:
    """Kill what is ours, reap it, and say what is left."""
    began = asyncio.get_running_loop().time()
    await asyncio.to_thread(parts.watch.remember_segments)
    if kill:
        await asyncio.to_thread(parts.processes.kill)
    for _ in range(50):
        main = parts.run.engine.pid if parts.run.engine is not None else None
        reap(main, parts.processes.helpers)
        alive = await asyncio.to_thread(parts.processes.ours)
        if not alive:
            break
        await asyncio.sleep(SWEEP_PAUSE_S / 5)
    names = tuple(f"pid {process.pid} ({title(process)})" for process in alive)
    held = 0 if names else await _gpu_bytes(parts, began)
    if not names and not held:
        removed = await asyncio.to_thread(shared_memory.remove, parts.watch.segments)
        if removed:
            parts.log.info(f"removed {len(removed)} shared-memory segments of the ended engine")
    parts.put(Swept(alive=names, gpu_bytes=held))


async def _gpu_bytes(parts: Parts, began: float) -> int:
    """GPU memory that our gone processes still hold, from a sample taken after they were gone."""
    if parts.instance.settings.engine.device != "cuda" or not parts.watch.pids():
        return 0
    loop = asyncio.get_running_loop()
    until = loop.time() + GPU_FRESH_S
    gone_at = loop.time()
    while loop.time() < until:
        table = parts.gpu_table()
        if table is None or not table.ok:
            return 0
        if table.at > max(gone_at, began):
            held = [engine_bytes(sample, parts.watch.pids()) for sample in table.samples]
            if any(size is not None for size in held):
                return sum(size for size in held if size)
            used = sum(sample.memory_used_bytes or 0 for sample in table.samples)
            level = parts.gpu_before if parts.gpu_before is not None else used
            return max(used - level - (1 << 30), 0)
        await asyncio.sleep(SWEEP_PAUSE_S)
    return 0


async def save_incident(parts: Parts, effect: SaveIncident, state: State) -> str:
    """Write what is known of the failure into a directory of its own; its path, or empty."""
    if effect.stacks:
        await _stacks(parts)
    directory = parts.instance.state_dir / "incidents" / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    try:
        return await asyncio.to_thread(_write, directory, parts, effect, state)
    except OSError as error:
        parts.log.warning(f"the incident cannot be saved: {error}")
        return ""


async def _stacks(parts: Parts) -> None:
    """Ask every Python process of the engine for its stacks (PYTHONFAULTHANDLER prints them on SIGABRT)."""
    parts.log.info("asking the hung engine for its stacks")
    for pid in parts.watch.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGABRT)
    await asyncio.sleep(STACKS_S)


def _write(directory: Path, parts: Parts, effect: SaveIncident, state: State) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    seconds = {phase.value: round(value, 3) for phase, value in state.phase_seconds(state.since).items()}
    verdict = {
        "cause": encode(effect.cause),
        "class": effect.cause.cause_class.value,
        "phases": seconds,
        "figures": {name.value: value for name, value in state.figures.items()},
        "activity": encode(state.activity),
        "processes": {str(pid): [role.value, name] for pid, (role, name) in parts.watch.roles.items()},
    }
    (directory / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")
    (directory / "output.log").write_text("\n".join(parts.run.last_lines(2000)) + "\n")
    return str(directory)
