"""What the answers to the smoke questions are worth.

A load that succeeded is not a model that answers: a checkpoint without its tokenizer starts, and
only the answer shows it. A reasoning model fills `reasoning` first and `content` after. And a model
that answers may do so at a fraction of its pace: only earlier answers show that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat import Answer

RIGHT, CUT, EMPTY, WRONG, GARBAGE, SLOW, FAILED = "right", "cut off", "empty", "wrong", "garbage", "slow", "failed"
VERDICTS = (RIGHT, SLOW, CUT, EMPTY, WRONG, GARBAGE, FAILED)

LAST = 5
"""So many earlier answers are looked at."""
LEAST = 3
"""Fewer of them judge nothing: the first answer ever may have compiled something."""
FACTOR = 2.0
"""An answer is slow at half of the usual pace, or when its first token takes twice as long."""
SPARE_S = 1.0
"""A first token that comes less than this later than usual is not late."""
JUDGED_TOKENS = 8
"""Shorter answers have no pace."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One question with what became of it; `answer` is None when there was none."""

    question: str
    verdict: str
    sentence: str
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to the first token, and tokens a second behind it; None where it is not known."""

    first_token_s: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Smoke:
    """The whole test.

    Attributes:
        passed: Every answer is right; one that is only slow passes.
        pace: The median of the answers.
        beside: The pace next to that of the last tests, in words.
    """

    passed: bool
    verdict: str
    sentence: str
    pace: Pace
    beside: str
    answers: tuple[Judged, ...]


def judge(answer: Answer, expect: str) -> tuple[str, str]:
    """The verdict on an answer, and a sentence that shows it."""
    content = answer.content.strip()
    if expect.casefold() in content.casefold():
        return RIGHT, f"right: {shown(content)}"
    if answer.finish == "length":
        seen = content or answer.reasoning.strip()
        return CUT, f"cut off after {answer.tokens} tokens: {shown(seen)}"
    everything = f"{answer.reasoning}{content}"
    if not everything.strip():
        return EMPTY, "the answer was empty"
    if is_garbage(everything):
        return GARBAGE, f"garbage (is the tokenizer the checkpoint's?): {shown(everything)}"
    return WRONG, f"{expect!r} is not in the answer: {shown(content or answer.reasoning)}"


def too_slow(answer: Answer, expect: str, limit_s: float) -> tuple[str, str]:
    """The verdict on an answer that had not ended after `limit_s` seconds."""
    if expect.casefold() in answer.content.casefold():
        return judge(answer, expect)
    rate = f" ({answer.tokens_per_s:.1f} tokens/s)" if answer.tokens_per_s else ""
    seen = shown(answer.content.strip() or answer.reasoning.strip())
    return SLOW, f"slow: {answer.tokens} tokens in {limit_s:g} s{rate} and no end: {seen}"


def whole(answers: Sequence[Judged], last: Sequence[Pace], *, excused: bool = False) -> Smoke:
    """The test of all its questions.

    Args:
        answers: At least one.
        last: The pace of the last tests, oldest first; too few of them judge nothing.
        excused: Something else explains a slow answer.
    """
    pace = _together([one.answer for one in answers if one.answer is not None])
    beside = _beside(pace, last)
    many = len(answers)
    for number, one in enumerate(answers, 1):
        if one.verdict != RIGHT:
            sentence = f"question {number} of {many}: {one.sentence}" if many > 1 else one.sentence
            return Smoke(False, one.verdict, sentence, pace, beside, tuple(answers))
    sentence = answers[0].sentence if many == 1 else f"all {many} {answers[0].sentence}"
    late = "" if excused else slowness(pace, last)
    if late:
        return Smoke(True, SLOW, f"slow: {late}; {sentence}", pace, beside, tuple(answers))
    return Smoke(True, RIGHT, sentence, pace, beside, tuple(answers))


def slowness(pace: Pace, last: Sequence[Pace]) -> str:
    """Why this pace is slow beside the last ones; empty when it is not, or when nobody can tell."""
    found = []
    rates = [one.tokens_per_s for one in last if one.tokens_per_s is not None]
    if pace.tokens_per_s is not None and len(rates) >= LEAST and pace.tokens_per_s * FACTOR < _median(rates):
        found.append(f"{pace.tokens_per_s:.1f} tokens/s, usually {_median(rates):.1f}")
    firsts = [one.first_token_s for one in last if one.first_token_s is not None]
    if pace.first_token_s is not None and len(firsts) >= LEAST:
        usual = _median(firsts)
        if pace.first_token_s > max(usual * FACTOR, usual + SPARE_S):
            found.append(f"the first token after {pace.first_token_s:.2f} s, usually {usual:.2f} s")
    return ", ".join(found)


def last_paces(rows: Iterable[Mapping[str, Any]], asked: str) -> tuple[Pace, ...]:
    """The pace of the last tests that asked the same of the same model and passed, oldest first.

    Args:
        rows: Rows of the history, oldest first.
        asked: Which questions of which model, as the history has it.
    """
    found = []
    for row in rows:
        kept = row.get("smoke")
        if isinstance(kept, Mapping) and kept.get("passed") and kept.get("asked") == asked:
            found.append(Pace(_number(kept.get("first_token_s")), _number(kept.get("tokens_per_s"))))
    return tuple(pace for pace in found if pace != Pace())[-LAST:]


def is_garbage(text: str) -> bool:
    """Whether text is no language: few letters and blanks, or hardly any word is separated."""
    kept = text.strip()
    if len(kept) < 8:
        return False
    plain = sum(char.isalpha() or char.isspace() for char in kept)
    longest = max(len(word) for word in kept.split()) if kept.split() else 0
    return plain / len(kept) < 0.6 or "�" in kept or longest > 60


def shown(text: str) -> str:
    """The begin of a text on one line, in quotes."""
    flat = " ".join(text.split())
    return repr(flat[:80] + ("..." if len(flat) > 80 else ""))


def _together(answers: Sequence[Answer]) -> Pace:
    firsts = [one.first_token_s for one in answers if one.first_token_s is not None]
    rates = [one.tokens_per_s for one in answers if one.tokens_per_s is not None and one.tokens >= JUDGED_TOKENS]
    return Pace(_median(firsts) if firsts else None, _median(rates) if rates else None)


def _beside(pace: Pace, last: Sequence[Pace]) -> str:
    parts = []
    if pace.first_token_s is not None:
        firsts = [f"{one.first_token_s:.2f}" for one in last if one.first_token_s is not None]
        parts.append(f"first token after {pace.first_token_s:.2f} s{_listed(firsts, ' s')}")
    if pace.tokens_per_s is not None:
        rates = [f"{one.tokens_per_s:.1f}" for one in last if one.tokens_per_s is not None]
        parts.append(f"{pace.tokens_per_s:.1f} tokens/s{_listed(rates, '')}")
    return ", ".join(parts)


def _listed(values: Sequence[str], unit: str) -> str:
    return f" (before: {', '.join(values)}{unit})" if values else ""


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
