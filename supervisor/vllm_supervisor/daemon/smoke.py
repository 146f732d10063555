"""Asking the engine the question with a known answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm_supervisor.core.events import SmokeDone
from vllm_supervisor.core.smoke import CUT, FAILED, RIGHT, Answer, judge, read_answer

if TYPE_CHECKING:
    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.config.settings import Smoke

MORE_TOKENS = 8
"""An answer that was cut off is asked for once more, with so many times the room."""


async def ask(http: EngineHttp, settings: Smoke) -> SmokeDone:
    """One smoke test; never raises."""
    began = time.monotonic()
    verdict, words, _ = await converse(http, settings)
    return SmokeDone(verdict == RIGHT, words, time.monotonic() - began)


async def converse(http: EngineHttp, settings: Smoke) -> tuple[str, str, Answer | None]:
    """The verdict, the sentence that shows it, and the answer itself when there is one; never raises."""
    first = await _once(http, settings, settings.max_tokens)
    if first[0] == CUT:
        more = await _once(http, settings, settings.max_tokens * MORE_TOKENS)
        if more[0] != FAILED:  # there may be no room for more in the model's context
            return more
    return first


async def _once(http: EngineHttp, settings: Smoke, tokens: int) -> tuple[str, str, Answer | None]:
    body = {
        "model": http.endpoint.model,
        "messages": [{"role": "user", "content": settings.question}],
        "max_tokens": tokens,
        "temperature": 0.1,
    }
    status, answer, complaint = await http.try_post("/v1/chat/completions", body, settings.timeout_s)
    if complaint:
        return FAILED, complaint, None
    read = read_answer(answer) if status == 200 else None
    if read is None:
        return FAILED, f"/v1/chat/completions says {status}: {str(answer)[:120]}", None
    return (*judge(read, settings.expect), read)
