"""What a rule of the classifier is: one wording of one cause, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final


class Kind(StrEnum):
    """What sort of line a rule reads; a rule never sees another sort."""

    ERROR = "error"
    """An exception line of a traceback, or the text of an ERROR record."""
    NATIVE = "native"
    """C, C++ and argparse: NCCL warnings, `terminate called`, `vllm: error:`."""
    KERNEL = "kernel"
    SYSTEMD = "systemd"
    RECORD = "record"
    """A record of vLLM's own at any level."""


class Tier(IntEnum):
    """How near to the root a wording is; the lowest tier in a log is the cause, the first line in it.

    A kernel that reports a lost GPU explains the CUDA error that follows, a full /dev/shm explains the
    NCCL error, and any of them explains the worker's death.
    """

    HARDWARE = 0
    HINT_OF_HARDWARE = 5
    ROOT = 10
    HINT = 15
    SYMPTOM = 20
    ECHO = 25
    DEATH = 30
    VAGUE = 40


WEAK: Final = 4
"""Added to the tier of a cause that another line only quotes."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known where a line stands.

    Attributes:
        phase: The last phase reached, in the words of a log (`serving` for all that follows HTTP).
        process: The process that printed the line, or None.
        frames: Marks of the traceback that the line ends (`shm`, `compile`, `all-reduce`, `weights`).
        fields: Figures of this start for the advice (`port`, `tp`, `model`).
        pids: The pids seen in this log so far.
    """

    phase: str = "launching"
    process: str | None = None
    frames: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)
    pids: AbstractSet[int] = frozenset()

    def in_engine(self) -> bool:
        """Whether the line comes from the engine core or a worker, not from the API server."""
        return of_engine(self.process)


def of_engine(process: str | None) -> bool:
    """Whether the name in a process prefix is that of the engine core or of a worker, not of the API server."""
    return process is not None and process.startswith(("Worker", "EngineCore", "VllmWorker", "Ray"))


Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording of one cause.

    Attributes:
        slug: A key of `causes.REASONS`.
        regex: Matched at the begin of the text, behind every `SomeError: `.
        summary: A few words for STATUS; may use the regex's groups.
        advice: One sentence; may use groups, `derive`d fields and the figures of the start.
        plain: The advice when one of these is not known.
        kinds: The sorts of lines that it reads.
        tier: How near to the root it is.
        fatal: The line proves the failure by itself, even while the engine serves.
        when: A condition beyond the text.
        derive: Further fields from the groups.
    """

    slug: str
    regex: re.Pattern[str]
    summary: str
    advice: str
    plain: str = ""
    kinds: frozenset[Kind] = frozenset({Kind.ERROR})
    tier: int = Tier.ROOT
    fatal: bool = False
    when: Callable[[Situation, re.Match[str]], bool] | None = None
    derive: Callable[[Fields], Fields] | None = None

    def match(self, text: str, at: int, situation: Situation) -> re.Match[str] | None:
        """Match the text from `at` on; None unless the condition holds too."""
        found = self.regex.match(text, at)
        if found and self.when and not self.when(situation, found):
            return None
        return found

    def explain(self, match: re.Match[str], situation: Situation) -> tuple[str, str]:
        """Summary and advice with the line's numbers in them."""
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        fields = {**situation.fields, **groups}
        if self.derive:
            fields.update(self.derive(groups))
        advice = _fill(self.advice, fields)
        return _fill(self.summary, fields) or "", advice or self.plain


def _fill(template: str, fields: Fields) -> str | None:
    try:
        return template.format_map(fields)
    except KeyError:
        return None


def rule(
    slug: str,
    regex: str,
    summary: str,
    advice: str,
    *,
    plain: str = "",
    kinds: tuple[Kind, ...] = (Kind.ERROR,),
    tier: int = Tier.ROOT,
    fatal: bool = False,
    when: Callable[[Situation, re.Match[str]], bool] | None = None,
    derive: Callable[[Fields], Fields] | None = None,
) -> Rule:
    """A rule with its regex compiled; the arguments are the attributes of `Rule`."""
    return Rule(slug, re.compile(regex), summary, advice, plain, frozenset(kinds), tier, fatal, when, derive)
