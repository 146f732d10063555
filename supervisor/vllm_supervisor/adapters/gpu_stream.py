"""The daemon's end of the GPU helper: starts it, reads its reports, replaces it when it fails.

Nothing here ever waits for the driver. A helper that falls silent is killed by its own pid; one that
cannot even be killed, because a call holds it in the kernel, is not doubled but waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.gpu import GpuReport, GpuTable, parse_report
from vllm_supervisor.core.gpu_records import advance, aged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LONGEST_LINE = 1 << 20
"""Bytes; a report of eight GPUs has about 6,000."""
LONG_LIFE = 30.0
"""Seconds of reports after which a helper's end is taken for a new trouble, without a grown pause."""
PARTING = 1.0
"""Seconds that the daemon's own end waits for the killed helper."""


def helper_command(period: float) -> list[str]:
    """The helper's command line; `-P` keeps the working directory out of its imports."""
    return [sys.executable, "-P", "-m", "vllm_supervisor.adapters.nvml", str(os.getpid()), str(period)]


class GpuStream:
    """Keeps a helper running and the table of GPUs current.

    Attributes:
        table: The table after the last report; see `current` for one that knows its age.
        starts: Helpers started so far.
        pid: The running helper's, None between two.
    """

    def __init__(
        self,
        on_table: Callable[[GpuTable], None],
        *,
        period: float = 1.0,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        silent_after: float = 5.0,
        first_after: float = 60.0,
        pauses: tuple[float, float] = (1.0, 60.0),
    ) -> None:
        """Nothing is started before `run`.

        Args:
            on_table: Called with every new table, in the loop.
            period: Seconds between two reports.
            command: The helper, if not ours.
            environment: Its environment, if not the daemon's.
            silent_after: Seconds of silence after which it is killed.
            first_after: The same before its first report; without the persistence daemon NVML takes
                seconds for each GPU to initialise.
            pauses: Seconds before another helper is started: the first pause, which doubles with
                every failure, and the longest.
        """
        self.table = GpuTable()
        self.starts = 0
        self.pid: int | None = None
        self._on_table = on_table
        self._command = list(command or helper_command(period))
        self._environment = dict(os.environ if environment is None else environment)
        # The package is found by the helper wherever the daemon itself found it.
        roots = (self._environment.get("PYTHONPATH", ""), str(Path(__file__).parents[2]))
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
        self._silent_after, self._first_after, self._pauses = silent_after, first_after, pauses

    def current(self) -> GpuTable:
        """The table, without its readings once they are too old."""
        return aged(self.table, time.monotonic(), self._silent_after)

    async def run(self) -> None:
        """Keep a helper running until cancelled; it is gone, or unkillable, when this returns."""
        pause, longest = self._pauses
        while True:
            begin = time.monotonic()
            self._fail(await self._one_helper())
            if time.monotonic() - begin > LONG_LIFE:
                pause = self._pauses[0]
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _one_helper(self) -> str:
        """Start a helper and read it to its end; why it ended, in one sentence."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        pipe = os.fdopen(reading, "rb", buffering=0)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns at exec; asyncio's own would wait for it in a thread
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C in the terminal is the daemon's affair
            )
        except OSError as error:
            pipe.close()
            return f"the GPU helper does not start: {error}"
        finally:
            os.close(writing)
        self.starts += 1
        self.pid = process.pid
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        leaving = True
        try:
            why = await self._read(reader)
            leaving = False
        finally:
            transport.close()
            await self._end(process, leaving=leaving)
            self.pid = None
        return why or f"the GPU helper ended with {process.returncode}"

    async def _read(self, reader: asyncio.StreamReader) -> str:
        """Read reports until there are no more; why, as far as it can be told."""
        limit, why = self._first_after, ""
        while True:
            try:
                async with asyncio.timeout(limit):
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    return why
                report = parse_report(line)
            except TimeoutError:
                return f"the GPU helper was silent for {limit:g} s"
            except ValueError as error:
                return f"the GPU helper talks nonsense: {error}"
            limit, why = self._silent_after, report.error
            self._publish(report)

    async def _end(self, process: subprocess.Popen[bytes], *, leaving: bool) -> None:
        """Kill the helper and wait until it is reaped; only briefly if the daemon is leaving."""
        process.kill()
        try:
            watch = os.pidfd_open(process.pid)
        except ProcessLookupError:
            process.poll()
            return
        dead = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(watch, dead.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(dead.wait(), PARTING)
            if not dead.is_set() and not leaving:
                self._fail(f"the GPU helper (pid {process.pid}) is stuck in the driver and cannot be killed")
                await dead.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
            process.poll()

    def _fail(self, why: str) -> None:
        self._publish(GpuReport(time.monotonic(), time.time(), ok=False, error=why))

    def _publish(self, report: GpuReport) -> None:
        self.table = advance(self.table, report)
        self._on_table(self.table)
