"""What kernel, driver and cgroup say while the engine runs: evidence always, a fault where it proves one."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from vllm_supervisor.adapters.kernel_log import KernelLine, KernelLog
from vllm_supervisor.core.events import EngineExited, Event, Faulted, ProcessDied
from vllm_supervisor.core.gpu import GpuTable, engine_bytes
from vllm_supervisor.core.hardware import (
    KILLED_STATUSES,
    XidLine,
    fresh_xids,
    oom_cause,
    oom_counted,
    read_kernel,
    xid_cause,
    xid_is_ours,
)
from vllm_supervisor.core.xid import lookup

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.adapters.cgroup import OomCounter
    from vllm_supervisor.core.causes import Cause

EVIDENCE = 200
LAST_WORD_S = 0.5
"""After the engine's main process was killed, so long the kernel may still say that it was the killer."""
WHOSE_S = 1.0
"""After the kernel has killed for memory, so long the end of the victim may take to be known."""


class Witness:
    """Listens beside the engine's own output.

    Args:
        put: Takes an event, in the loop.
        kernel: Makes the follower of the kernel's lines.
        counter: The unit's counter of OOM kills.
        gpu_table: What is known now of the GPUs that the engine may use.
        machine_gpus: How many GPUs the machine has.
        alive: Whether the engine runs; what happens before and after is evidence and no fault of it.
        helpers: Pids of our own helpers while they live. The kernel takes the one that reads ahead before the engine.
        helpers_killed: How many of them were killed so far.

    Attributes:
        evidence: (source, line), the last ones.
        pids: Every process that the engine has, or had.
    """

    def __init__(
        self,
        put: Callable[[Event], None],
        *,
        kernel: Callable[[Callable[[KernelLine], None]], KernelLog],
        counter: OomCounter,
        gpu_table: Callable[[], GpuTable | None],
        machine_gpus: Callable[[], int],
        alive: Callable[[], bool],
        helpers: AbstractSet[int],
        helpers_killed: Callable[[], int],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._put = put
        self._counter = counter
        self._gpu_table = gpu_table
        self._machine_gpus = machine_gpus
        self._alive = alive
        self._log = log
        self._helpers, self._helpers_killed = helpers, helpers_killed
        self._killed = counter.read()
        self._counted: Cause | None = None
        self._grown = self._helpers_known = 0
        self._xids: dict[tuple[str, int], int] = {}
        self._gpus: set[str] = set()
        self._proved = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()
        self.pids: set[int] = set()
        self.evidence: collections.deque[tuple[str, str]] = collections.deque(maxlen=EVIDENCE)
        self.kernel = kernel(self._heard)
        self._following = asyncio.get_running_loop().create_task(self.kernel.run())

    async def close(self) -> None:
        """Follow nothing any more."""
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following

    def put(self, event: Event) -> None:
        """Pass an event on; before a death everything that may explain it."""
        if isinstance(event, (ProcessDied, EngineExited)):
            self._look_at_memory()
            if self._counted is not None:
                self._fault(self._counted)
                self._counted, self._grown = None, 0
            self._look_at_gpus()
        if isinstance(event, EngineExited) and event.status in KILLED_STATUSES and self.kernel.pid is not None:
            self._later(self._put_late(event))
            return
        self._put(event)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _put_late(self, event: Event) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._proved.wait(), LAST_WORD_S)
        self._put(event)

    def look(self, pids: frozenset[int], main_pid: int | None) -> None:
        """Look at what does not report by itself."""
        self.pids |= pids | ({main_pid} if main_pid is not None else set())
        self._look_at_memory()
        self._look_at_gpus()

    def _look_at_memory(self) -> None:
        now = self._counter.read()
        if now is None:
            return  # nobody counts, or this look failed: what is known stays, so that the next look tells the growth
        cause = oom_counted(self._killed, now)
        if cause is not None:
            self.evidence.append(("cgroup", cause.evidence))
            self._grown += now - (self._killed or 0)
            self._counted = cause
            self._later(self._whose(cause))
        elif self._counted is None:
            self._helpers_known = self._helpers_killed()
        self._killed = now

    async def _whose(self, cause: Cause) -> None:
        """The counter does not say whom the kernel killed: unless the engine loses a process, it may be a helper."""
        await asyncio.sleep(WHOSE_S)
        if self._counted is not cause:
            return
        before, self._helpers_known = self._helpers_known, self._helpers_killed()
        grown, self._counted, self._grown = self._grown, None, 0
        if self._helpers_known - before < grown:
            self._fault(cause)
        else:
            self._log.warning("the kernel killed the helper that reads ahead: memory is short; the engine goes on")

    def _look_at_gpus(self) -> None:
        table = self._gpu_table()
        if table is None:
            return
        pids = frozenset(self.pids)
        self._gpus |= {sample.uuid or f"index {sample.index}" for sample in table.samples if engine_bytes(sample, pids)}
        records = {record.uuid or f"index {record.index}": record for record in table.records}
        counts = {(key, xid): n for key, record in records.items() for xid, n in record.xid_errors.items()}
        for (key, xid), _ in fresh_xids(self._xids, counts):
            where = f"{records[key].index} ({records[key].uuid or 'no uuid'})"
            line = f"Xid {xid} on GPU {where}: {lookup(xid).meaning}"
            self._note("NVML", line)
            cause = xid_cause(where, xid, f"NVML: {line}")
            if cause is not None and (key in self._gpus or not self._gpus):
                self._fault(cause)
        self._xids = counts

    def _heard(self, line: KernelLine) -> None:
        found = read_kernel(line.message)
        if found is None:
            return
        self._note("kernel", line.message)
        evidence = f"kernel: {line.message}"
        if isinstance(found, XidLine):
            cause = xid_cause(found.gpu, found.xid, evidence)
            if cause is not None and not xid_is_ours(found, self.pids, all_gpus=self._uses_all_gpus()):
                cause = None
        elif found.pid in self._helpers:
            cause = None
        else:
            cause = oom_cause(found, evidence, self.pids, self._counter.cgroup)
        if cause is not None:
            self._fault(cause)

    def _uses_all_gpus(self) -> bool:
        known = self._machine_gpus()
        table = self._gpu_table()
        mine = len(table.records) if table is not None else known
        return len(self._gpus or range(mine)) >= known

    def _note(self, source: str, line: str) -> None:
        self.evidence.append((source, line))
        self._log.warning(f"{source}: {line}")

    def _fault(self, cause: Cause) -> None:
        self._proved.set()
        if self._alive():
            self._put(Faulted(cause))
