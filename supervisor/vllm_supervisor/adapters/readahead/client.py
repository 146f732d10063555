"""The other end of the reading helper: starts it, tells it where the engine is, and takes its reports.

It is ended by closing its stdin, and killed by its own pid when it does not go. A helper that dies is
not replaced: a load is short, and goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vllm_supervisor.core.readahead.order import Order, to_line
from vllm_supervisor.core.readahead.report import Doing, Report, from_line

PARTING = 1.0
"""Seconds that a helper has for its last report, and again to be gone once it was killed."""
LONGEST_LINE = 1 << 16

_SETTLED = {Doing.OFF, Doing.DONE, Doing.FAILED}


def helper_command() -> list[str]:
    """The helper's command line; `-P` keeps the working directory out of its imports."""
    return [sys.executable, "-P", "-m", "vllm_supervisor.adapters.readahead", str(os.getpid())]


class ReadAhead:
    """One reading ahead.

    Args:
        command: The helper, if not ours.
        environment: Its environment, if not our own.
        started: Told the helper's pid as soon as there is one.

    Attributes:
        report: The last one.
        pid: The helper's while it lives; not a part of the engine.
        started_pid: The same, also when it is gone; 0 before.
        killed: It was ended by SIGKILL while it read: by the kernel, for memory, or by a person.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        started: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.report = Report()
        self.pid: int | None = None
        self.started_pid = 0
        self._started = started
        self._command = list(command or helper_command())
        self._environment = dict(os.environ if environment is None else environment)
        # The package is found by the helper wherever we ourselves found it.
        roots = (self._environment.get("PYTHONPATH", ""), str(Path(__file__).parents[3]))
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
        self._told: tuple[float, float] | None = None
        self._stdin: int | None = None
        self.killed = False

    def engine_at(self, done: float, total: float) -> None:
        """Tell the helper the engine's bar; without waiting for it."""
        if (done, total) == self._told:
            return
        self._told = (done, total)
        self._tell(json.dumps({"done": done, "total": total}).encode() + b"\n")

    def _tell(self, line: bytes) -> None:
        if self._stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._stdin, line)

    async def run(self, order: Order, on_report: Callable[[Report], None] = lambda _: None) -> Report:
        """Read as ordered until the helper has ended, or this is cancelled: then it is ended first.

        Returns:
            The last report; `failed` with the reason when the helper ended by itself.
        """
        loop = asyncio.get_running_loop()
        try:
            process, pipe = self._start(order)
        except OSError as problem:
            self.report = Report(Doing.FAILED, f"the helper does not start: {problem.strerror}")
            on_report(self.report)
            return self.report
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        transport: asyncio.ReadTransport | None = None
        try:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            await self._read(reader, on_report)
        finally:
            self._close()
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PARTING if transport is not None else 0.0):
                        await self._read(reader, on_report)
            finally:
                # Also when the end itself is cut short.
                if transport is not None:
                    transport.close()
                process.kill()
                await _collect(process)
                self.pid = None
        if self.report.doing is not Doing.OFF:
            how = process.returncode or 0
            self.killed = how == -signal.SIGKILL
            why = f"its helper was ended by {signal.Signals(-how).name}" if how < 0 else f"its helper ended with {how}"
            self.report = replace(self.report, doing=Doing.FAILED, why=why, rate=None)
        elif not self.report.why:
            self.report = Report(Doing.FAILED, f"its helper ended with {process.returncode}")
        on_report(self.report)
        return self.report

    def _start(self, order: Order) -> tuple[subprocess.Popen[bytes], io.FileIO]:
        reading, writing = os.pipe()
        theirs, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        self._tell(to_line(order))
        if self._told is not None:
            bar, self._told = self._told, None
            self.engine_at(*bar)
        try:
            process = subprocess.Popen(
                self._command,
                stdin=theirs,
                stdout=writing,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C in the terminal is the daemon's affair
            )
        except OSError:
            os.close(reading)
            self._close()
            raise
        finally:
            os.close(writing)
            os.close(theirs)
        self.pid = self.started_pid = process.pid
        self._started(process.pid)
        return process, os.fdopen(reading, "rb", buffering=0)

    async def _read(self, reader: asyncio.StreamReader, on_report: Callable[[Report], None]) -> None:
        with contextlib.suppress(ValueError, TypeError):  # whatever talks nonsense is no helper of ours
            while (line := await reader.readline()).endswith(b"\n"):
                self.report = from_line(line)
                on_report(self.report)

    def _close(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None


async def _collect(process: subprocess.Popen[bytes]) -> None:
    """Wait until a killed helper is gone; one that a read holds in the kernel is left behind to end by itself."""
    with contextlib.suppress(ProcessLookupError):
        watch = os.pidfd_open(process.pid)
        dead = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(watch, dead.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(dead.wait(), PARTING)
        finally:
            loop.remove_reader(watch)
            os.close(watch)
    process.poll()


def read_ahead(order: Order) -> Iterator[Report]:
    """Read as ordered, for a command: its reports, until all is read, or nothing is to be.

    Closing the generator ends the reading. What was read stays in memory as long as memory allows.
    """
    client = ReadAhead()
    try:
        process, pipe = client._start(order)  # noqa: SLF001 - the same object's other way to run
    except OSError as problem:
        yield Report(Doing.FAILED, f"the helper does not start: {problem.strerror}")
        return
    try:
        with pipe:
            for line in pipe:
                with contextlib.suppress(ValueError, TypeError):
                    report = from_line(line)
                    yield report
                    if report.doing in _SETTLED or (report.doing is Doing.FULL):
                        return
    finally:
        client._close()  # noqa: SLF001
        process.kill()
        process.wait()
