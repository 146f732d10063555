"""Keeps the root cause of a log while it streams by.

Every rule that fits is a candidate; the nearest to the root wins, and among equals the first line.
What came after it, however much and however loud, does not displace it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.lines import Line, Source

from .endings import Ending, ending, is_harmless, is_wrapper
from .rule import WEAK, Kind, Rule, Situation, Tier
from .rules_config import RULES as CONFIG
from .rules_gpu import RULES as GPU
from .rules_host import RULES as HOST
from .rules_kernels import RULES as KERNELS
from .rules_model import RULES as MODEL
from .rules_processes import RULES as PROCESSES
from .tracebacks import Trace, Tracebacks, is_exception
from .views import View, may_tell, views

RULES: Final[tuple[Rule, ...]] = (*HOST, *PROCESSES, *GPU, *KERNELS, *MODEL, *CONFIG)
"""Every rule; of several that fit one line the nearest to the root counts, then the first."""

WRAPPER_RULES: Final = tuple(
    rule for rule in RULES if rule.regex.pattern.startswith("Engine core initialization failed")
)
"""What the follow-on line of a failed start proves by itself: an exit by a signal."""

SERVING: Final = "serving"
_MAX_PIDS: Final = 4096
_AFTERMATH: Final = 500
"""A death within so many lines after an error is its consequence."""
_QUIET: Final = frozenset({"DEBUG", "INFO", "WARNING"})
_TELLING: Final = ("MPClient: ", "[shutdown] ", "Shutting down")
"""How the quiet records begin that tell of an end."""
UNKNOWN_SUMMARY: Final = "the log does not name a known cause"
_UNKNOWN_ADVICE: Final = (
    "The log does not say why it ended: keep it, look in the kernel log for that time, and start again."
)
UNKNOWN_LINE_ADVICE: Final = (
    "No rule knows this error: read the line and what stands above it, and start again once it is understood."
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that a rule knows."""

    rule: Rule
    tier: int
    evidence: str
    summary: str
    advice: str


class Classifier:
    """The verdict on one start, line by line.

    Attributes:
        fields: Figures of this start that an advice may use.
        trace: The traceback that the last line belongs to.
    """

    __slots__ = (
        "_best",
        "_died",
        "_ended",
        "_error",
        "_error_at",
        "_lines",
        "_ours",
        "_pids",
        "_stopped",
        "_tracebacks",
        "_waiting",
        "fields",
        "trace",
    )

    def __init__(self) -> None:
        """Know nothing yet."""
        self.fields: dict[str, str] = {}
        self.trace: Trace | None = None
        self._tracebacks = Tracebacks()
        self._pids: set[int] = set()
        self._best: Candidate | None = None
        self._waiting: Candidate | None = None
        self._error = ""
        self._error_at = 0
        self._lines = 0
        self._died = False
        self._ended = False
        self._stopped = False

    @property
    def over(self) -> bool:
        """Whether the log shows that the engine failed, was stopped or is gone."""
        return self._died or self._ended or self._stopped or self._best is not None

    @property
    def stopped(self) -> bool:
        """Whether the log shows that somebody asked for the end."""
        return self._stopped

    def observe(self, raw: str, line: Line, phase: str) -> bool:
        """Take the next line.

        Args:
            raw: The line as printed, without its line end: the evidence, if it is one.
            line: The same, peeled.
            phase: The last phase reached, in the words of a log.

        Returns:
            Whether the cause is another one now.
        """
        self._lines += 1
        if line.pid is not None and len(self._pids) < _MAX_PIDS:
            self._pids.add(line.pid)
        trace = self.trace = self._tracebacks.see(line)
        if line.level in _QUIET and not line.message.startswith(_TELLING):
            return False
        if trace is None and line.source is Source.BARE and not may_tell(line.message):
            return False
        before = self.cause_line
        if not self._stopped or line.source is Source.KERNEL:
            self._judge_all(raw, line, trace, phase)
        self._note_ending(line)
        return self.cause_line is not before

    def started(self) -> None:
        """HTTP is up: whatever was reported before did not hinder the start."""
        self._died = self._ended = False
        self._error = ""
        self._waiting = None
        if self._best and not self._best.rule.fatal:
            self._best = None

    @property
    def cause_line(self) -> Candidate | None:
        """The best candidate that counts as of now."""
        if self._waiting and self._died and (self._best is None or self._waiting.tier < self._best.tier):
            return self._waiting
        return self._best

    def verdict(self, phase: str) -> Cause:
        """The cause as of now.

        A log that shows no end is `healthy`, even in the middle of a load: nothing failed in it. One that
        ends on request is healthy too. `unknown` is for an end whose reason the log does not hold.

        Args:
            phase: The last phase reached, in the words of a log.
        """
        if found := self.cause_line:
            return Cause(found.rule.slug, found.evidence, phase, found.advice, found.summary)
        if self._died or (self._ended and not self._stopped):
            advice = UNKNOWN_LINE_ADVICE if self._error else _UNKNOWN_ADVICE
            return Cause("unknown", self._error, phase, advice, UNKNOWN_SUMMARY)
        if self._stopped:
            return Cause("healthy", "", phase, "Nothing to do: it was stopped on request.", "stopped on request")
        if phase == SERVING:
            return Cause(
                "healthy", "", phase, "Nothing to do: the engine serves, and its warnings are harmless.", "serving"
            )
        return Cause(
            "healthy", "", phase, f"Nothing failed so far: the log ends while the engine is in {phase}.", "no failure"
        )

    def _judge_all(self, raw: str, line: Line, trace: Trace | None, phase: str) -> None:
        situation: Situation | None = None
        for view in views(line, trace):
            if situation is None:
                owner = line.process or (trace.owner if trace else None)
                frames = frozenset(trace.frames) if trace else frozenset()
                situation = Situation(phase, owner, frames, self.fields, self._pids)
            named = trace is not None and trace.named and not trace.ignored
            self._judge(raw, view, situation, bare=line.source is Source.BARE, named=named)

    def _judge(self, raw: str, view: View, situation: Situation, *, bare: bool, named: bool) -> None:
        if is_wrapper(view.text):
            self._try(raw, view, WRAPPER_RULES, situation)
            return
        if self._try(raw, view, RULES, situation):
            return
        if self._error or view.places[0] or not (named or is_exception(view.text)) or is_harmless(view.text):
            return
        if situation.phase != SERVING or situation.in_engine():
            self._error, self._error_at = raw, self._lines
            # A traceback that nobody logged is the end of the process that printed it.
            self._ended = self._ended or (bare and not situation.in_engine())

    def _try(self, raw: str, view: View, rules: tuple[Rule, ...], situation: Situation) -> bool:
        best: tuple[Rule, re.Match[str]] | None = None
        for rule in rules:
            if view.kind not in rule.kinds or (best and rule.tier >= best[0].tier):
                continue
            for at in view.places:
                if match := rule.match(view.text, at, situation):
                    best = rule, match
                    break
        if best:
            self._add(raw, view, *best, situation)
        return best is not None

    def _add(self, raw: str, view: View, rule: Rule, match: re.Match[str], situation: Situation) -> None:
        tier = rule.tier + (WEAK if view.weak else 0)
        if Tier.DEATH <= rule.tier < Tier.VAGUE and self._follows(match):
            return
        if situation.phase == SERVING and not rule.fatal:
            # While it serves, errors of requests are daily business: only the engine's own count, and
            # only once it died.
            if view.kind is Kind.ERROR and not situation.in_engine():
                return
            if self._waiting is None or tier < self._waiting.tier:
                self._waiting = _candidate(raw, rule, tier, match, situation)
        elif self._best is None or tier < self._best.tier:
            self._best = _candidate(raw, rule, tier, match, situation)

    def _follows(self, match: re.Match[str]) -> bool:
        """Whether a death only follows an error that no rule knows; a signal from outside never does."""
        if not self._error or self._lines - self._error_at > _AFTERMATH:
            return False
        return not (match.groupdict().get("code") or "").startswith("-")

    def _note_ending(self, line: Line) -> None:
        match ending(line):
            case Ending.DEATH if not self._stopped:
                self._died = True
            case Ending.EXIT if not self._stopped:
                self._ended = True
            case Ending.STOP if not self._died and self._best is None:
                self._stopped = True
            case _:
                pass


def _candidate(raw: str, rule: Rule, tier: int, match: re.Match[str], situation: Situation) -> Candidate:
    summary, advice = rule.explain(match, situation)
    return Candidate(rule, tier, raw, summary, advice)
