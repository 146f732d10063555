"""Asking the engine the questions with a known answer."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters.engine_http import OVERDUE
from vllm_supervisor.core.chat import Streamed
from vllm_supervisor.core.events import SmokeDone
from vllm_supervisor.core.smoke import CUT, FAILED, Judged, Pace, Smoke, judge, last_paces, too_slow, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.config.questions import Smoke as Questions
    from vllm_supervisor.config.settings import Settings

PATH = "/v1/chat/completions"
MORE_TOKENS = (8, 4, 2)
"""An answer that was cut off is asked for once more, with so many times the room: as much as the context has."""


async def ask(http: EngineHttp, settings: Settings, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> SmokeDone:
    """One smoke test; never raises.

    Args:
        http: The engine.
        settings: Of the instance.
        rows: The history, oldest start first.
    """
    began = time.monotonic()
    if http.task in {"embed", "score"}:
        return SmokeDone(passed=True, verdict=f"not asked: this engine is there to {http.task}, it has no chat")
    found = await converse(http, settings.smoke, last_paces(rows(), asked_of(settings)))
    took = time.monotonic() - began
    pace = found.pace
    return SmokeDone(
        found.passed, found.sentence, took, pace.first_token_s, pace.tokens_per_s, found.beside, found.verdict
    )


def kept(result: SmokeDone, settings: Settings) -> dict[str, Any]:
    """What the history keeps of a test."""
    return {
        "passed": result.passed,
        "verdict": result.verdict,
        "seconds": round(result.seconds, 3),
        "first_token_s": None if result.first_token_s is None else round(result.first_token_s, 4),
        "tokens_per_s": None if result.tokens_per_s is None else round(result.tokens_per_s, 2),
        "asked": asked_of(settings),
    }


def asked_of(settings: Settings) -> str:
    """A name for the questions and the model: only answers to the same can be compared."""
    asked = [settings.engine.model, settings.smoke.max_tokens, [question for question, _ in pairs(settings.smoke)]]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


def pairs(questions: Questions) -> list[tuple[str, str]]:
    """Every question with what its answer must contain."""
    return [(questions.question, questions.expect), *((more.question, more.expect) for more in questions.questions)]


async def converse(
    http: EngineHttp, questions: Questions, last: Sequence[Pace] = (), *, excused: bool = False
) -> Smoke:
    """Ask all questions, one after the other; never raises.

    Args:
        http: The engine.
        questions: What is asked, and how much room and time an answer has.
        last: The pace of earlier tests, for comparison.
        excused: They are shown, and no pace is slow.
    """
    return whole([await _one(http, questions, *pair) for pair in pairs(questions)], last, excused=excused)


async def _one(http: EngineHttp, questions: Questions, question: str, expect: str) -> Judged:
    _, first = await _once(http, questions, question, expect, questions.max_tokens)
    if first.verdict == CUT:
        for factor in MORE_TOKENS:
            status, more = await _once(http, questions, question, expect, questions.max_tokens * factor)
            if more.verdict != FAILED:
                return more
            if status != 400:
                break
    return first


async def _once(http: EngineHttp, questions: Questions, question: str, expect: str, tokens: int) -> tuple[int, Judged]:
    body = {
        "model": http.endpoint.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0.1,
        "stream": True,
        # The second one is vLLM's own: the count of each piece, for several tokens may come at once.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    seen = Streamed()

    def take(event: Any, at: float) -> None:
        nonlocal seen
        seen = seen.take(event, at)

    status, complaint = await http.stream(PATH, body, questions.timeout_s, take)
    answer = seen.answer()
    if complaint.endswith(OVERDUE) and answer.tokens:
        return status, Judged(question, *too_slow(answer, expect, questions.timeout_s), answer)
    if complaint or seen.error or not seen.begun:
        why = complaint or f"{PATH}: {seen.error or 'there is no answer in what came'}"
        return status, Judged(question, FAILED, why)
    if not answer.finish and answer.first_token_s is not None:
        return status, Judged(question, FAILED, f"{PATH}: the answer broke off after {answer.tokens} tokens", answer)
    return status, Judged(question, *judge(answer, expect), answer)
