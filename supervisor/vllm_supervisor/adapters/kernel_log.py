"""The kernel's lines as they come, by way of `journalctl`: the driver's Xid, the OOM killer.

Readable by root and by the group systemd-journal. Where the journal cannot be read, or is not
there at all, nothing is followed; that is a fact, not an error.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

COMMAND = ("journalctl", "--dmesg", "--follow", "--lines=0", "--output=json", "--quiet", "--no-pager")
KEPT = 400
LONGEST_LINE = 1 << 20
SHORT_LIFE_S = 5.0
"""A follower that ends sooner than this without a line cannot read the journal, and is not started again."""
PAUSE_S = 10.0
PARTING_S = 1.0


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line: when it was logged, in seconds of the wall clock, and what it says."""

    at: float
    message: str


class KernelLog:
    """Follows the kernel's lines from now on.

    Attributes:
        lines: The last ones, oldest first.
        pid: The follower's, None between two.
    """

    def __init__(
        self,
        on_line: Callable[[KernelLine], None],
        *,
        command: Sequence[str] = COMMAND,
        helpers: set[int] | None = None,
    ) -> None:
        """Nothing is started before `run`.

        Args:
            on_line: Called with every line, in the loop.
            command: What prints the journal as JSON, one object a line.
            helpers: Where the follower stands while it runs, so that nobody takes it for a part of the engine.
        """
        self.lines: collections.deque[KernelLine] = collections.deque(maxlen=KEPT)
        self.pid: int | None = None
        self._on_line = on_line
        self._command = list(command)
        self._helpers = helpers if helpers is not None else set()

    async def run(self) -> None:
        """Follow until cancelled, or until it turns out that nothing can be read."""
        loop = asyncio.get_running_loop()
        while True:
            began, had = loop.time(), len(self.lines)
            await self._follow()
            if loop.time() - began < SHORT_LIFE_S and len(self.lines) == had:
                return
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        pipe = os.fdopen(reading, "rb", buffering=0)
        try:
            # Neither our secrets nor our mark are its business.
            environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"}
            process = subprocess.Popen(  # noqa: ASYNC220 - returns at exec; asyncio's own would wait for it in a thread
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            pipe.close()
            return
        finally:
            os.close(writing)
        self.pid = process.pid
        self._helpers.add(process.pid)
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                try:
                    raw = await reader.readline()
                except ValueError:
                    continue  # longer than any line of the kernel
                if not raw:
                    return
                line = parse(raw)
                if line is not None:
                    self.lines.append(line)
                    self._on_line(line)
        finally:
            transport.close()
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PARTING_S)
            self.pid = None
            self._helpers.discard(process.pid)

    def since(self, at: float) -> list[KernelLine]:
        """The kept lines that are not older than `at`, in seconds of the wall clock."""
        return [line for line in list(self.lines) if line.at >= at]


def parse(raw: bytes) -> KernelLine | None:
    """One object of `journalctl -o json`; None when it is none. Messages that are no UTF-8 come as numbers."""
    try:
        found: Any = json.loads(raw)
        message = found["MESSAGE"]
        if isinstance(message, list):
            message = bytes(message).decode(errors="replace")
        stamp = found.get("__REALTIME_TIMESTAMP")
        return KernelLine(int(stamp) / 1e6 if stamp is not None else time.time(), str(message))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
