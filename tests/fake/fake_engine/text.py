"""Completions and chat: one word a token, reasoning first, content after, cut at max_tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .api import DEAD, Api, dumped, failure, missing, reply, usage
from .model import Request
from .server import Answer, Asked

STREAM = "text/event-stream; charset=utf-8"
NO_KV: dict[str, Any] = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def pieces(text: str) -> list[str]:
    """Tokens: words with the blank before them, the final full stop by itself."""
    return re.findall(r"\s*[^\s.]+|\s*\.", text)


def wanted(given: dict[str, Any], default: int, natural: int) -> tuple[int, str]:
    """How many tokens are made of `natural`, and why they end."""
    limit = given.get("max_completion_tokens") or given.get("max_tokens") or default
    if given.get("ignore_eos"):
        return limit, "length"
    return (limit, "length") if limit < natural else (natural, "stop")


def misranked(api: Api, asked: Asked) -> Answer | None:
    """The refusal of a request for an engine that there is not (vLLM 0.32, v1/engine/input_processor.py)."""
    rank, ranks = asked.headers.get("x-data-parallel-rank", ""), api.args.number("data-parallel-size", 1)
    heeded = rank.isdecimal() and int(rank) >= ranks and api.script.rank_header == "heeded"
    if heeded or (rank and api.script.rank_header == "refused"):
        return failure(f"data_parallel_rank {rank} is out of range [0, {ranks}).", "BadRequestError", 400)
    return None


def completion(api: Api, asked: Asked, given: dict[str, Any]) -> Answer:
    """POST /v1/completions: goes on with the answer's words for as long as it may."""
    if "prompt" not in given:
        return missing("prompt")
    words = pieces(api.script.answer) or [" "]
    tokens, reason = wanted(given, 16, 10**9)
    prompt = given.get("prompt", "")
    request = api.start(asked, given, max(1, len(str(prompt).split())), tokens, reason)
    if isinstance(request, Answer):
        return request
    frame = api._frame("cmpl", "text_completion")
    text = [words[index % len(words)] for index in range(tokens)]
    if given.get("stream"):
        return Answer(kind=STREAM, chunks=_completion_chunks(api, asked, request, frame, text))
    if bad := api.ended_badly(asked, request):
        return bad
    choice = {"index": 0, "text": "".join(text[: request.made]), "logprobs": None, "finish_reason": request.finished,
              "stop_reason": None, "token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None,
              "routed_experts": None}  # fmt: skip
    return reply({**frame, "choices": [choice], "service_tier": None, "system_fingerprint": api.fingerprint,
                  "usage": usage(request.prompt, request.made), **NO_KV})  # fmt: skip


def _completion_chunks(
    api: Api, asked: Asked, request: Request, frame: dict[str, Any], text: list[str]
) -> Iterator[bytes]:
    sent = 0
    for made, last in api.follow(asked, request):
        choice = {
            "index": 0,
            "text": "".join(text[sent:made]),
            "logprobs": None,
            "finish_reason": last,
            "stop_reason": None,
            "token_ids": None,
        }
        print_of = {"system_fingerprint": api.fingerprint} if last else {}
        yield _event({**frame, "choices": [choice], **print_of})
        sent = made
    yield from _farewell(request)


def thoughts(api: Api) -> str:
    """The field of the reasoning: vLLM renamed it after 0.11."""
    return "reasoning_content" if api.minor <= 11 else "reasoning"


def chat(api: Api, asked: Asked, given: dict[str, Any]) -> Answer:
    """POST /v1/chat/completions; without --reasoning-parser the thought is part of the content."""
    messages = given.get("messages")
    if not messages:
        return missing("messages")
    thought, answer = pieces(api.script.reasoning), pieces(api.script.answer)
    split = len(thought) + 1 if thought else 0  # </think> is a token too
    parser = api.args.has("reasoning-parser") and split
    text = [*thought, "</think>", *answer] if thought else answer
    prompt = sum(len(str(each.get("content", "")).split()) + 4 for each in messages)
    limit = given.get("max_completion_tokens") or given.get("max_tokens") or 0
    if limit > api.max_len:
        return failure(
            f"max_tokens={limit} cannot be greater than max_model_len={api.max_len}.", "BadRequestError", 400
        )
    tokens, reason = wanted({**given, "max_tokens": min(limit, api.max_len - prompt)}, api.max_len, len(text) + 1)
    request = api.start(asked, given, prompt, tokens, reason)
    if isinstance(request, Answer):
        return request
    text = (text * (tokens // max(len(text), 1) + 1))[:tokens] if given.get("ignore_eos") else text
    if given.get("stream"):
        options = given.get("stream_options") or {}
        return Answer(
            kind=STREAM, chunks=_chat_chunks(api, asked, request, text, split if parser else 0, options=options)
        )
    if bad := api.ended_badly(asked, request):
        return bad
    made = text[: request.made]
    message = {"role": "assistant", "content": "".join(made[split:] if parser else made) or None, "refusal": None,
               "annotations": None, "audio": None, "function_call": None,
               thoughts(api): "".join(made[: split - 1]) if parser else None}  # fmt: skip
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": request.finished, "stop_reason": None,
              "token_ids": None, "routed_experts": None}  # fmt: skip
    return reply({**api._frame("chatcmpl", "chat.completion"), "choices": [choice], "service_tier": None,
                  "system_fingerprint": api.fingerprint,
                  "usage": usage(request.prompt, request.made, min(request.made, split - 1) if parser else None), "prompt_logprobs": None,
                  "prompt_token_ids": None, "prompt_text": None, **NO_KV})  # fmt: skip


def _chat_chunks(
    api: Api, asked: Asked, request: Request, text: list[str], split: int, *, options: dict[str, Any]
) -> Iterator[bytes]:
    frame = api._frame("chatcmpl", "chat.completion.chunk")
    always = options.get("include_usage") and options.get("continuous_usage_stats")

    def counted(made: int) -> dict[str, Any]:
        return {"usage": usage(request.prompt, made)} if always else {}

    def chunk(delta: dict[str, Any], last: str | None, made: int) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": last, "token_ids": None}
        if last:
            return _event(
                {**frame, "choices": [{**choice, "stop_reason": None}], "system_fingerprint": api.fingerprint}
                | counted(made)
            )
        return _event({**frame, "choices": [choice], **counted(made)})

    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    yield _event({**frame, "choices": [first], "prompt_token_ids": None, "prompt_text": None, **counted(0)})
    sent = 0
    for made, last in api.follow(asked, request):
        thought, content = text[sent : min(made, split - 1)], text[max(sent, split) : made]
        if split and thought and content:
            yield chunk({thoughts(api): "".join(thought)}, None, made)
            thought = []
        delta = {thoughts(api): "".join(thought)} if split and thought else {"content": "".join(content)}
        yield chunk(delta, last, made)
        sent = made
    if options.get("include_usage") and request.finished != "dead":
        yield _event({**frame, "choices": [], "usage": usage(request.prompt, sent)})
    yield from _farewell(request)


def _farewell(request: Request) -> Iterator[bytes]:
    if request.finished == "dead":
        yield _event({"error": {"message": DEAD, "type": "InternalServerError", "param": None, "code": 500}})
    yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + dumped(value) + b"\n\n"
