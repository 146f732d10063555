"""The slow part of an ending: killing, and looking for what is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from vllm_supervisor.adapters import shared_memory
from vllm_supervisor.adapters.processes import reap, title
from vllm_supervisor.core.engineflags import effective
from vllm_supervisor.core.events import Swept
from vllm_supervisor.core.gpu import left_behind

if TYPE_CHECKING:
    from .instance import Instance
    from .perform import Parts

SWEEP_PAUSE_S = 0.1
GPU_FRESH_S = 3.0
"""A GPU table older than this says nothing about what is left."""


async def sweep(parts: Parts, *, kill: bool) -> None:
    """Kill what is ours, reap it, and say what is left."""
    began = asyncio.get_running_loop().time()
    if kill:
        await asyncio.to_thread(_kill, parts)
    else:
        await asyncio.to_thread(parts.watch.remember_segments)
    for _ in range(50):
        main = parts.run.engine.pid if parts.run.engine is not None else None
        reap(main, parts.processes.helpers)
        alive = await asyncio.to_thread(parts.processes.ours)
        if not alive:
            # An orphan that died between the two looks is a zombie of ours now.
            reap(main, parts.processes.helpers)
            break
        await asyncio.sleep(SWEEP_PAUSE_S / 5)
    names = tuple(f"pid {process.pid} ({title(process)})" for process in alive)
    held = 0 if names else await _gpu_bytes(parts, began)
    if not names and not held:
        removed = await asyncio.to_thread(shared_memory.remove, parts.watch.segments)
        if removed:
            parts.log.info(f"removed {len(removed)} shared-memory segments of the ended engine")
    parts.put(Swept(alive=names, gpu_bytes=held))


def _kill(parts: Parts) -> None:
    """Kill what is ours, after a last look at its shared memory while it stands still."""
    parts.watch.remember_segments(parts.processes.hold())
    parts.processes.kill()


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
            shared = _weights_are_shared(parts.instance)
            return left_behind(table.samples, parts.watch.pids(), parts.gpu_before, shared=shared)
        await asyncio.sleep(SWEEP_PAUSE_S)
    return 0


def _weights_are_shared(instance: Instance) -> bool:
    """Whether it holds the weights of another unit's engine, or maps those of another unit."""
    engine = instance.settings.engine
    return instance.holds_weights or effective(engine.command[1:], engine.args).get("load-format") == "ipc_cache"
