"""What an answer to the smoke question is worth.

A load that succeeded is not a model that answers: a checkpoint without its tokenizer starts, and
only the answer shows it. A reasoning model fills `reasoning` first and `content` after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RIGHT, CUT, EMPTY, WRONG, GARBAGE, FAILED = "right", "cut off", "empty", "wrong", "garbage", "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of a chat completion; `finish` is its finish_reason, `tokens` its completion tokens."""

    content: str
    reasoning: str
    finish: str
    tokens: int


def read_answer(body: Any) -> Answer | None:
    """The answer in a response of /v1/chat/completions; None when it has none."""
    if not isinstance(body, Mapping):
        return None
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return None
    message = choices[0].get("message") or {}
    usage = body.get("usage") or {}
    # vLLM renamed the field: reasoning_content up to 0.11, reasoning since.
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return Answer(
        content=str(message.get("content") or ""),
        reasoning=str(reasoning),
        finish=str(choices[0].get("finish_reason") or ""),
        tokens=int(usage.get("completion_tokens") or 0),
    )


def judge(answer: Answer, expect: str) -> tuple[str, str]:
    """The verdict on an answer, and a sentence that shows it."""
    content = answer.content.strip()
    if expect.casefold() in content.casefold():
        return RIGHT, f"right: {_shown(content)}"
    if answer.finish == "length":
        seen = content or answer.reasoning.strip()
        return CUT, f"cut off after {answer.tokens} tokens: {_shown(seen)}"
    everything = f"{answer.reasoning}{content}"
    if not everything.strip():
        return EMPTY, "the answer was empty"
    if is_garbage(everything):
        return GARBAGE, f"garbage (is the tokenizer the checkpoint's?): {_shown(everything)}"
    return WRONG, f"{expect!r} is not in the answer: {_shown(content or answer.reasoning)}"


def is_garbage(text: str) -> bool:
    """Whether text is no language: few letters and blanks, or hardly any word is separated."""
    kept = text.strip()
    if len(kept) < 8:
        return False
    plain = sum(char.isalpha() or char.isspace() for char in kept)
    longest = max(len(word) for word in kept.split()) if kept.split() else 0
    return plain / len(kept) < 0.6 or "�" in kept or longest > 60


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat[:80] + ("..." if len(flat) > 80 else ""))
