"""A chat completion as it streams in: its two texts, when its tokens came, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_PROMPT = "Hello"


RANK = "X-data-parallel-rank"
"""The header by which a completion asks for one of several engines (vLLM 0.32, generate/base/serving.py)."""

SCALING = "currently scaling"
"""In the 503 to every request while engines are added or taken away (vLLM 0.32, entrypoints/serve/elastic_ep)."""


def one_request(task: str, model: str) -> tuple[str, dict[str, Any]]:
    """Path and body of the smallest real request of a task: one token, one embedding, one score."""
    if task == "embed":
        return "/v1/embeddings", {"model": model, "input": _PROMPT}
    if task == "score":
        return "/score", {"model": model, "text_1": _PROMPT, "text_2": _PROMPT}
    return "/v1/completions", {"model": model, "prompt": _PROMPT, "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion.

    Attributes:
        content: What the client is told.
        reasoning: What a reasoning model thought before.
        finish: Its finish_reason; empty when it has not ended.
        tokens: Its completion tokens.
        first_token_s: Seconds from the request to the first token; None when it was not streamed.
        tokens_per_s: Tokens a second behind the first one; None when there are too few to say.
    """

    content: str
    reasoning: str
    finish: str
    tokens: int
    first_token_s: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """What has come of one answer; times are seconds since its request.

    Attributes:
        begun: There was an answer, be it an empty one.
        error: What the engine said instead of going on.
        deltas: Pieces with text; one token each where the engine counts none.
        first_tokens: Tokens that the first piece had: several with speculative decoding.
    """

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    tokens: int = 0
    begun: bool = False
    error: str = ""
    deltas: int = 0
    first_at: float | None = None
    first_tokens: int = 1
    last_at: float = 0.0

    def take(self, event: Any, at: float) -> Streamed:
        """With one more event of the stream; a whole answer that was not streamed is taken, too."""
        if not isinstance(event, Mapping):
            return self
        if event.get("error"):
            error = event["error"]
            return replace(self, error=str(error.get("message", error) if isinstance(error, Mapping) else error)[:200])
        counted = _counted(event.get("usage"))
        now = replace(self, tokens=max(self.tokens, counted))
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
            return now
        choice = choices[0]
        now = replace(now, begun=True, finish=str(choice.get("finish_reason") or self.finish))
        if isinstance(choice.get("message"), Mapping):
            return now.more(choice["message"])
        delta = choice.get("delta")
        told = now.more(delta if isinstance(delta, Mapping) else {})
        text = told.content != self.content or told.reasoning != self.reasoning
        if text:
            told = replace(told, deltas=self.deltas + 1)
        if told.first_at is None and (text or counted):
            told = replace(told, first_at=at, first_tokens=counted or 1)
        # The token that ends an answer has no text.
        return replace(told, last_at=at) if text or counted > self.tokens or choice.get("finish_reason") else told

    def more(self, part: Mapping[str, Any]) -> Streamed:
        """With the texts of one more part."""
        # vLLM renamed the field: reasoning_content up to 0.11, reasoning since.
        thought = part.get("reasoning") or part.get("reasoning_content") or ""
        return replace(
            self, content=self.content + str(part.get("content") or ""), reasoning=self.reasoning + str(thought)
        )

    def answer(self) -> Answer:
        """What has come so far, with its figures."""
        tokens = self.tokens or self.deltas
        rate = None
        if self.first_at is not None and tokens > self.first_tokens and self.last_at > self.first_at:
            rate = (tokens - self.first_tokens) / (self.last_at - self.first_at)
        return Answer(self.content, self.reasoning, self.finish, tokens, self.first_at, rate)


def _counted(usage: Any) -> int:
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else 0


def error_text(answer: Any) -> str:
    """What an answer that is an error says, in at most 200 characters."""
    if isinstance(answer, dict):
        inner = answer.get("error", answer)
        text = inner.get("message", inner) if isinstance(inner, dict) else inner
        return str(text)[:200]
    return str(answer)[:200]
