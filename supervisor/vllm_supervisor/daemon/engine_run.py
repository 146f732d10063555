"""One run of the engine: its process, its output, and what was read from it.

The reader's thread classifies; only recognised facts cross into the loop. The last lines are kept
for an incident, without the secrets that we know.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from vllm_supervisor.adapters.launcher import Engine, launch
from vllm_supervisor.adapters.log import marks
from vllm_supervisor.adapters.output import Forwarder, OutputReader, make_pipe
from vllm_supervisor.core.events import EngineExited, Event, Output
from vllm_supervisor.core.facts import Fact
from vllm_supervisor.core.redact import by_shape
from vllm_supervisor.core.scanner import Scanner
from vllm_supervisor.core.splitter import Splitter
from vllm_supervisor.core.tails import Tails

LAST_OUTPUT_S = 0.5
"""How long output is still read after the main process is gone; orphans may hold the pipes for ever."""

_OUR_PROBES = re.compile(r'"GET [^ "]*/(?:health|metrics|v1/models) HTTP/1\.[01]" 200')

Put = Callable[[Event], None]


class EngineRun:
    """The engine of one start.

    Args:
        loop: The loop that events are put into.
        put: Takes an event, in the loop.
        forwarder: Takes the lines for the journal.
        journal: Whether these lines carry a priority.
        redact: Takes the secrets out of a line.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        put: Put,
        forwarder: Forwarder,
        *,
        journal: bool,
        redact: Callable[[str], str] = by_shape,
    ) -> None:
        self._loop = loop
        self._put = put
        self._forwarder = forwarder
        self._marks = marks(journal=journal)
        self._redact = redact
        self._listened: list[str] | None = None
        self._splitters = {"stdout": Splitter(), "stderr": Splitter()}
        self._ended = asyncio.Event()
        self._lock = threading.Lock()
        self.scanner = Scanner()
        self.tail = Tails()
        self.command: list[str] = []
        self.lines: collections.Counter[str] = collections.Counter()
        self.engine: Engine | None = None
        self.reader: OutputReader | None = None

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Start the engine; its pid.

        Raises:
            OSError: the command cannot be executed.
        """
        out_read, out_write = make_pipe()
        err_read, err_write = make_pipe()
        self.command = list(command)
        self.engine = launch(command, env, out_write, err_write)
        self.attach(self.engine, {"stdout": out_read, "stderr": err_read})
        return self.engine.pid

    def attach(self, engine: Engine, pipes: Mapping[str, int]) -> None:
        """Read the output and await the end of an engine that runs."""
        self.engine = engine
        self.reader = OutputReader(pipes, self._handle, self._all_read)
        self.reader.start()
        engine.watch(self._loop, self._exited)

    def _all_read(self) -> None:
        self._call(self._ended.set)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return  # the loop has ended; nobody waits for this any more

    def _exited(self, status: int) -> None:
        async def settle() -> None:
            if self.reader is not None:
                self.reader.finish(LAST_OUTPUT_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), LAST_OUTPUT_S + 5.0)
            self._put(EngineExited(status))

        self._settling = self._loop.create_task(settle())

    def _handle(self, stream: str, piece: bytes) -> None:
        """A piece of output, in the reader's thread; empty at the end of the stream."""
        splitter = self._splitters[stream]
        lines = splitter.feed(piece) if piece else splitter.flush()
        facts: list[Fact] = []
        kept: list[str] = []
        out: list[str] = []
        probes = recognised = 0
        redact, feed = self._redact, self.scanner.feed  # a hundred thousand lines a second come by here
        for raw in lines:
            # Before anything else: an evidence line goes to STATUS, pages, history and incident.
            text = redact(raw)
            found = feed(text, stream)
            facts += found
            if "/" in text and _OUR_PROBES.search(text):
                probes += 1
                continue
            if found:
                recognised += 1
            if text.isspace():
                continue
            kept.append(text)
            out.append(f"{self._marks[self.scanner.level_of_last]}{text}\n")
        self.lines.update(probe=probes, recognised=recognised, other=len(lines) - probes - recognised)
        self.tail.extend(kept)
        if self._listened is not None:
            self._listened += kept
        if out:
            self._forwarder.put("".join(out).encode("utf-8", "replace"), len(out))
        if facts:
            self._call(self._put, Output(tuple(facts)))

    def last_lines(self, count: int) -> list[str]:
        """The last lines of the output, oldest first."""
        return self.tail.last(count)

    def listen(self) -> list[str]:
        """The lines since the last call; the first call only begins to listen."""
        heard, self._listened = self._listened, []
        return heard or []

    def partial(self) -> dict[str, str]:
        """The incomplete line of each stream, as latin-1 text, for a re-execution."""
        return {stream: splitter.pending.decode("latin-1") for stream, splitter in self._splitters.items()}

    def preload(self, partial: Mapping[str, str]) -> None:
        """Go on with the incomplete lines that `partial` gave."""
        for stream, text in partial.items():
            self._splitters[stream].feed(text.encode("latin-1"))

    def terminate(self) -> bool:
        """SIGTERM to the main process."""
        return self.engine is not None and self.engine.signal(signal.SIGTERM)

    def abort(self, number: signal.Signals) -> bool:
        """Another signal to the main process."""
        return self.engine is not None and self.engine.signal(number)
