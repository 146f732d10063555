"""The GPU sampler of a daemon, narrowed to the GPUs of its instance."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from vllm_supervisor.adapters.gpu_stream import GpuStream
from vllm_supervisor.core.gpu_records import only

if TYPE_CHECKING:
    from vllm_supervisor.adapters.processes import Processes
    from vllm_supervisor.core.gpu import GpuTable

    from .instance import Instance


class Gpus:
    """The GPU sampler of a daemon; there is none where no GPU is expected."""

    def __init__(self, instance: Instance, processes: Processes) -> None:
        self._processes = processes
        self._gpus = instance.gpus()
        self._stream: GpuStream | None = None
        self._task: asyncio.Task[None] | None = None
        if instance.settings.engine.device == "cuda":
            self._stream = GpuStream(lambda _: None)
            self._task = asyncio.get_running_loop().create_task(self._stream.run())

    def table(self) -> GpuTable | None:
        """What is known now of the instance's own GPUs; None where no GPU is expected."""
        if self._stream is None:
            return None
        if self._stream.pid is not None:
            self._processes.helpers.add(self._stream.pid)
        return only(self._stream.current(), self._gpus)

    def machine(self) -> int:
        """How many GPUs the machine has, as far as is known."""
        return len(self._stream.table.records) if self._stream is not None else 0

    async def close(self) -> None:
        """End the sampler."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
