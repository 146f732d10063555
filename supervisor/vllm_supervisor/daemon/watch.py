"""Looking at the engine from outside: processes and their deaths, what they do, counters, GPUs.

Everything here only produces events. Looks at /proc are taken in a worker thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.adapters import shared_memory, sock_diag, sockets
from vllm_supervisor.core.counters import EngineCounters, read_counters
from vllm_supervisor.core.events import Event, ProcessDied, Role
from vllm_supervisor.core.gpu import GpuTable, engine_bytes
from vllm_supervisor.core.phases import LOADING, SERVING, Phase
from vllm_supervisor.core.rates import Counter, RateWindow
from vllm_supervisor.core.sightings import Activity, Counted

from .engine_page import EnginePage

if TYPE_CHECKING:
    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.adapters.processes import Processes

LOOK_EVERY_S = 2.0
ROLES_EVERY_S = 10.0
"""When ready, new processes are looked for only so often; known ones are watched by pidfd."""

WATCHED = frozenset({Role.WORKER, Role.ENGINE_CORE, Role.API_SERVER})


class Watch:
    """Samples the engine of one start.

    Args:
        put: Takes an event, in the loop.
        processes: The processes of this start.
        http: The engine's client.
        port: The engine's TCP port, 0 when it has none.
        cache_dirs: Where compilers write.
    """

    def __init__(
        self,
        put: Callable[[Event], None],
        processes: Processes,
        http: EngineHttp,
        *,
        port: int,
        cache_dirs: tuple[Path, ...],
        gpu_table: Callable[[], GpuTable | None],
    ) -> None:
        self._put = put
        self._processes = processes
        self.page = EnginePage(http.metrics)
        self._port = port
        self._cache_dirs = cache_dirs
        self._gpu_table = gpu_table
        self._pidfds: dict[int, int] = {}
        self._looked_at = float("-inf")
        self._looked_in: Phase | None = None
        self.roles: dict[int, tuple[Role, str]] = {}
        self.segments: set[str] = set()
        self.counters = EngineCounters()
        self.generation = RateWindow()
        self.prompt = RateWindow()
        self.canaries = 0
        """Requests of ours that are under way; they are no work of the engine's clients."""

    async def look(self, phase: Phase, main_pid: int | None) -> None:
        """One look at the engine; puts what was seen as an event."""
        loop = asyncio.get_running_loop()
        if phase in LOADING or phase is not self._looked_in or loop.time() - self._looked_at >= ROLES_EVERY_S:
            self._looked_at = loop.time()
            self.roles = await asyncio.to_thread(self._processes.roles, main_pid)
            self._watch_all(loop, main_pid)
        if phase in LOADING or phase is not self._looked_in:
            # A loading engine makes segments at any moment, and may be ended right after.
            self._looked_in = phase
            await asyncio.to_thread(self.remember_segments)
        seen = await asyncio.to_thread(self._activity, phase)
        self._put(seen)

    def _watch_all(self, loop: asyncio.AbstractEventLoop, main_pid: int | None) -> None:
        for pid, (role, name) in self.roles.items():
            if role not in WATCHED or pid in self._pidfds or pid == main_pid:
                continue
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                self._put(ProcessDied(pid, role, name))
                continue
            self._pidfds[pid] = descriptor
            loop.add_reader(descriptor, self._died, pid, role, name)

    def _died(self, pid: int, role: Role, name: str) -> None:
        self._forget(pid)
        # Engines retitle their processes after they were first seen.
        role, name = self.roles.pop(pid, (role, name))
        self._put(ProcessDied(pid, role, name))

    def _forget(self, pid: int) -> None:
        descriptor = self._pidfds.pop(pid, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Watch nothing any more."""
        for pid in list(self._pidfds):
            self._forget(pid)

    def pids(self) -> frozenset[int]:
        """The engine's processes, as of the last look."""
        return frozenset(self.roles)

    def living(self) -> list[int]:
        """The engine's processes as they are now (in a worker thread)."""
        return [process.pid for process in self._processes.descendants()]

    def remember_segments(self, pids: frozenset[int] = frozenset()) -> None:
        """Note which shared-memory segments the engine's processes use, and `pids` (in a worker thread)."""
        self.segments |= shared_memory.mapped(self.pids() | pids)

    def _activity(self, phase: Phase) -> Activity:
        usage = self._processes.usage(self.roles)
        gpus = self._gpu_table()
        whole = _gpu_activity(gpus, self.pids())
        files = _count_files(self._cache_dirs) if phase in LOADING else None
        linked = None
        if phase in SERVING and self._port:
            linked = max(connected(self._port) - self.canaries, 0)
        return replace(
            whole,
            read_bytes=usage.read_bytes,
            resident_bytes=usage.resident_bytes,
            compiler_cpu_s=usage.compiler_cpu_s,
            worker_cpu_s=usage.worker_cpu_s,
            cache_files=files,
            connections=linked,
            engines=self._engines(gpus, whole) if phase in SERVING else {},
        )

    def _engines(self, table: GpuTable | None, whole: Activity) -> dict[str, Activity]:
        """The same of each of several engines; where NVML shows no processes, the GPUs of all of them."""
        found = {}
        for label, pids in self._processes.engines.items():
            known = table is not None and any(engine_bytes(sample, pids) for sample in table.samples)
            mine = {pid: role for pid, role in self.roles.items() if pid in pids}
            found[label] = replace(
                _gpu_activity(table, pids) if known else whole,
                worker_cpu_s=self._processes.usage(mine).worker_cpu_s,
            )
        return found

    def rates(self, now: float) -> dict[str, float]:
        """Tokens a second over the last ten seconds, where they are known."""
        found = {"generation": self.generation.rate(10.0, now), "prompt": self.prompt.rate(10.0, now)}
        return {name: value for name, value in found.items() if value is not None}

    async def read_counters(self, *, fresh: bool) -> None:
        """A light read of the engine's own counters, for rates and liveness.

        Args:
            fresh: Whether the engine is asked anew; else a page will do that was fetched for a scrape a moment ago.
        """
        fetched = await (self.page.now() if fresh else self.page.lately())
        if fetched.page is None:
            self._put(Counted(at=fetched.at))
            return
        read = read_counters(fetched.page)
        self.counters = read
        if counters := counters_of(read, "generation_tokens"):
            self.generation = self.generation.add(fetched.at, counters)
        if counters := counters_of(read, "prompt_tokens"):
            self.prompt = self.prompt.add(fetched.at, counters)
        self._put(as_event(read, fetched.at))


def counters_of(read: EngineCounters, name: str) -> dict[str, Counter]:
    """One counter of each engine that has it, by the engine's label."""
    values = {label: (getattr(one, name), one.created) for label, one in read.engines.items()}
    return {label: Counter(value, created) for label, (value, created) in values.items() if value is not None}


def as_event(read: EngineCounters, at: float | None) -> Counted:
    """A reading of the engine's page as the core takes it: the sums, and each engine where there are several."""
    return Counted(
        generation_tokens=read.generation_tokens,
        prompt_tokens=read.prompt_tokens,
        running=read.running,
        waiting=read.waiting,
        kv_usage=read.kv_usage_mean,
        iterations=read.iterations,
        at=at,
        engines={label: as_event(one, at) for label, one in read.engines.items()} if len(read.engines) > 1 else {},
    )


def connected(port: int) -> int:
    """How many connections the port has; /proc answers where the kernel may not be asked itself."""
    try:
        return sock_diag.connections(port)
    except OSError:
        return sockets.connections(port)


def _gpu_activity(table: GpuTable | None, pids: frozenset[int]) -> Activity:
    """Memory of the engine, and power and utilisation of the least busy of its GPUs."""
    if table is None or not table.ok or not table.samples:
        return Activity()
    mine = [sample for sample in table.samples if engine_bytes(sample, pids)] or list(table.samples)
    held = [engine_bytes(sample, pids) for sample in mine]
    total = sum(size for size in held if size is not None) if any(held) else None
    if total is None:
        used = [sample.memory_used_bytes for sample in mine if sample.memory_used_bytes is not None]
        total = sum(used) if used else None
    powers = [(s.power_watts, s.power_limit_watts) for s in mine if s.power_watts is not None and s.power_limit_watts]
    least = min(powers, key=lambda pair: pair[0] / (pair[1] or 1.0)) if powers else (None, None)
    utilization = [s.utilization_ratio for s in mine if s.utilization_ratio is not None]
    return Activity(
        gpu_bytes=total,
        gpu_power_watts=least[0],
        gpu_power_limit_watts=least[1],
        gpu_utilization=max(utilization) if utilization else None,
    )


def _count_files(directories: tuple[Path, ...]) -> int:
    """How many files lie below the directories; what cannot be read counts nothing."""
    total = 0
    for directory in directories:
        with contextlib.suppress(OSError):
            for _, _, names in os.walk(directory):
                total += len(names)
    return total
