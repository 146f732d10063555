"""Reads one start's output line by line and says what it means, as facts.

The only state in the reading of the log: the phase, the figures, the bars and the best cause so far.
No clock and no I/O; the same lines always give the same facts.
"""

from __future__ import annotations

import re
from typing import Final

from .causes import Cause
from .diagnosis import Classifier
from .diagnosis.tracebacks import Trace
from .facts import CauseFound, Fact, Figure, FigureName, PhaseSeen, Progress, StartupComplete
from .lines import Line, Source, peel
from .phases import ORDER, Phase
from .recognise import recognise
from .recognise_bars import Bar, bar, is_bar, is_warmup

_COMPLETE = "Application startup complete."
_RUST_READY = "OpenAI server is ready to accept requests"
_WEIGHTS_READY = "===== Weight cache daemon READY: "
_FOREIGN_UVICORN = re.compile(r"[^\"'`]{0,120}\buvicorn(?:\.\w{1,20})*\b[^\"'`]{0,60}\bApplication startup complete\.$")
_ACCESS = re.compile(r"\S{0,80} ?- \"[A-Z]{3,7} \S{1,2000} HTTP/\d")
_STATS = re.compile(r"(?:Engine \d{3}: Avg prompt throughput: |\d+ Engines Aggregated: )")
_ARGUMENTS: Final = {"port": re.compile(r"'port': (\d+)"), "tp": re.compile(r"'tensor_parallel_size': (\d+)")}
_RANK: Final = {phase: number for number, phase in enumerate(ORDER)}
_PRIORITIES: Final = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
_DEFAULT_PRIORITY: Final = 6
_ERROR_PRIORITY: Final = 3

LOG_PHASES: Final[dict[Phase, str]] = {
    phase: phase.value
    for phase in (
        Phase.LAUNCHING,
        Phase.CONFIGURING,
        Phase.CONNECTING,
        Phase.LOADING_WEIGHTS,
        Phase.COMPILING,
        Phase.SIZING_KV_CACHE,
        Phase.CAPTURING_GRAPHS,
    )
}
"""The phases as a log names them; all that comes once HTTP is up is `serving`."""


class Scanner:
    """The reading of one engine's output.

    Attributes:
        phase: The last phase reached; None before the first line that shows one.
        log_phase: The same in the words of a log (`serving` once HTTP is up); kept, since every line asks for it.
    """

    __slots__ = (
        "_bars",
        "_classifier",
        "_complete",
        "_main",
        "_priority",
        "_seen",
        "_serving",
        "_sized",
        "log_phase",
        "phase",
    )

    def __init__(self) -> None:
        """Start before the first line."""
        self._priority = _DEFAULT_PRIORITY
        self._forget()

    def _forget(self) -> None:
        self.phase: Phase | None = None
        self._seen = Phase.LAUNCHING
        self.serving = False
        self._classifier = Classifier()
        self._bars: set[str] = set()
        self._sized = False
        self._complete = False
        self._main: int | None = None

    def go_on(self) -> None:
        """Read on behind another reader, whose engine serves: from here on a traceback may be one request's alone."""
        self._complete = self.serving = True

    @property
    def serving(self) -> bool:
        """HTTP is up, as far as the log shows."""
        return self._serving

    @serving.setter
    def serving(self, now: bool) -> None:
        self._serving = now
        self.log_phase = "serving" if now else LOG_PHASES[self._seen]

    @property
    def level_of_last(self) -> int:
        """The syslog priority (0 to 7) of the line fed last."""
        return self._priority

    @property
    def trace(self) -> Trace | None:
        """The traceback that the last line belongs to."""
        return self._classifier.trace

    @property
    def stopped(self) -> bool:
        """Whether somebody asked for the end, as far as the log shows."""
        return self._classifier.stopped

    def feed(self, raw_line: str, stream: str = "stdout") -> tuple[Fact, ...]:  # noqa: ARG002 -- see Args
        """Take the next line.

        Args:
            raw_line: The line as printed; a line end does not matter.
            stream: `stdout` or `stderr`; no fact depends on it, since logging can be turned around.

        Returns:
            What the line says, mostly nothing.
        """
        raw = raw_line.rstrip("\r\n")
        line = peel(raw)
        facts: list[Fact] = []
        if line.source is Source.BARE and "%" in line.message:
            if found := bar(line.message):
                facts.extend(self._progress(found))
            elif is_warmup(line.message):
                facts.extend(self._enter(Phase.CAPTURING_GRAPHS if self._sized else Phase.COMPILING))
        elif line.level != "ERROR" or line.origin == "repo_utils.py":
            facts = self._read(line)
        if self._classifier.observe(raw, line, self.log_phase):
            facts.append(CauseFound(self._classifier.verdict(self.log_phase)))
        self._priority = self._rate(line)
        return tuple(facts) if facts else ()

    def verdict(self) -> Cause:
        """The cause at the end of the log: `healthy`, `unknown`, or what went wrong."""
        return self._classifier.verdict(self.log_phase)

    def _rate(self, line: Line) -> int:
        if line.level is not None:
            return _PRIORITIES.get(line.level, _DEFAULT_PRIORITY)
        if line.source is not Source.BARE or is_bar(line.message):
            return _DEFAULT_PRIORITY
        message = line.message
        in_trace = self._classifier.trace is not None and not self._classifier.trace.ignored
        if in_trace or message.startswith("Traceback (most recent call last):") or ": error: " in message[:40]:
            return _ERROR_PRIORITY
        return _DEFAULT_PRIORITY

    def _read(self, line: Line) -> list[Fact]:
        facts: list[Fact] = []
        if self._is_complete(line):
            if not self._complete:
                self._classifier.started()
            self._complete = self.serving = True
            return [StartupComplete()]
        if line.source is Source.UVICORN:
            self.serving = self.serving or _ACCESS.match(line.message) is not None
            return facts
        found = recognise(line)
        if found is None:
            if line.source in (Source.VLLM, Source.JSON) and _STATS.match(line.message):
                self.serving = True
            return facts
        if found.banner and line.pid != self._main:
            # A journal holds several starts; the last one counts.
            if self.serving or self._classifier.over:
                self._forget()
            self._main = line.pid
        self._sized = self._sized or found.sizes_cache
        if found.phase:
            phase = found.phase
            if phase is Phase.CAPTURING_GRAPHS and not self._sized:
                phase = Phase.COMPILING
            facts.extend(self._enter(phase))
        if line.message.startswith("non-default args: "):
            self._arguments(line.message)
        if line.message.startswith(("Starting vLLM", "Available routes")):
            self.serving = True
        facts.extend(found.figures)
        for figure in found.figures:
            self._remember(figure)
        return facts

    def _enter(self, phase: Phase) -> list[Fact]:
        """The phase of a line, unless another process is further on already."""
        current = self.phase
        back = current is Phase.CAPTURING_GRAPHS and phase is Phase.SIZING_KV_CACHE
        if current is not None and _RANK[phase] < _RANK[current] and not back:
            return []
        self.phase = phase
        if phase in LOG_PHASES:
            self._seen = phase
            self.serving = self._serving
        return [PhaseSeen(phase)]

    def _progress(self, found: Bar) -> list[Fact]:
        """A bar's fact; a trial capture of the memory profile belongs to the profile run.

        The second model runner captures once with the same bar before it knows the size of the KV
        cache. Where the lines that tell are hidden, the second run of a bar is the real capture.
        """
        phase = Phase.LOADING_WEIGHTS
        if found.capture:
            trial = (
                not self._sized and found.title.endswith(("(PIECEWISE)", "(FULL)")) and found.title not in self._bars
            )
            phase = Phase.COMPILING if trial else Phase.CAPTURING_GRAPHS
            if found.done >= found.total:
                self._bars.add(found.title)
        facts = self._enter(phase)
        return [*facts, Progress(phase, found.done, found.total, found.title)]

    def _arguments(self, message: str) -> None:
        fields = self._classifier.fields
        fields.setdefault("port", "8000")
        for name, regex in _ARGUMENTS.items():
            if match := regex.search(message):
                fields[name] = match[1]

    def _remember(self, figure: Figure) -> None:
        if figure.name is FigureName.MODEL:
            self._classifier.fields["model"] = str(figure.value)

    def _is_complete(self, line: Line) -> bool:
        message = line.message
        if _RUST_READY in message:
            rust = line.source is Source.RUST or (line.source is Source.VLLM and line.origin.endswith(".rs"))
            return rust and message.startswith(_RUST_READY)
        if message.startswith(_WEIGHTS_READY):
            return line.source in (Source.VLLM, Source.JSON)
        if not message.endswith(_COMPLETE):
            return False
        match line.source:
            case Source.UVICORN:
                return message == _COMPLETE
            case Source.JSON:
                return message == _COMPLETE and line.origin.startswith("uvicorn")
            case Source.VLLM:
                # A logging configuration may send uvicorn's records through vLLM's formatter.
                return message == _COMPLETE and line.origin.rsplit("/", 1)[-1] == "on.py"
            case Source.BARE:
                return message == _COMPLETE or _FOREIGN_UVICORN.match(message) is not None
            case _:
                return False
