"""The routes, with the JSON shapes of vLLM 0.32."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import metrics
from .arguments import Arguments
from .model import Engine, Request
from .script import Script
from .server import Answer, Asked

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
CLOSED = "cannot schedule new futures after shutdown"
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version"}


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def reply(value: Any, status: int = 200) -> Answer:
    return Answer(status, dumped(value))


def failure(message: str, kind: str, code: int, param: str | None = None) -> Answer:
    return reply({"error": {"message": message, "type": kind, "param": param, "code": code}}, code)


class Api:
    """Answers requests from the script and the engine."""

    def __init__(self, script: Script, args: Arguments, engine: Engine, server: Any, minor: int) -> None:
        self.script, self.args, self.engine, self.server, self.minor = script, args, engine, server, minor
        self.fingerprint = None if minor < 26 else f"vllm-{script.version}-fake"
        self.names = args.values.get("served-model-name") or [args.model]
        self.model = self.names[0]
        keys = args.values.get("api-key") or [os.environ.get("VLLM_API_KEY", "")]
        self.keys = [key for key in keys if key]
        self.generated_once = False
        self.max_len = args.number("max-model-len", script.max_model_len)
        self.frozen_page: str | None = None
        generate, embed, score = (task in script.tasks for task in ("generate", "embed", "score"))
        self.routes: dict[tuple[str, str], Any] = {
            ("GET", "/health"): self.health, ("GET", "/ping"): self.health, ("POST", "/ping"): self.health,
            ("GET", "/load"): lambda _: reply({"server_load": server.open - 1 if args.has("enable-server-load-tracking") else 0}),
            ("GET", "/version"): lambda _: reply({"version": script.version}),
            ("GET", "/metrics"): self.metrics, ("GET", "/v1/models"): self.models, ("POST", "/tokenize"): self.tokenize,
        }  # fmt: skip
        if generate:
            self.routes["POST", "/v1/completions"] = self.completions
            self.routes["POST", "/v1/chat/completions"] = self.chat
        if embed:
            self.routes["POST", "/v1/embeddings"] = self.embeddings
        if score:
            self.routes |= {("POST", path): self.score for path in ("/score", "/v1/score")}
            self.routes |= {("POST", path): self.rerank for path in ("/rerank", "/v1/rerank", "/v2/rerank")}

    def __call__(self, asked: Asked) -> Answer:
        if self.script.answer_delay:
            time.sleep(self.script.answer_delay)
        if self.script.scaling:
            return reply({"error": "The model is currently scaling. Please try again later."}, 503)
        root = self.args.text("root-path").rstrip("/")
        path = asked.path.removeprefix(root) if root else asked.path
        if self.keys and path.startswith(GUARDED) and asked.method != "OPTIONS" and not self._allowed(asked):
            return reply({"error": "Unauthorized"}, 401)
        route = self.routes.get((asked.method, path))
        if route is None:
            known = [method for method, each in self.routes if each == path]
            if not known:
                return reply({"detail": "Not Found"}, 404)
            return replace(reply({"detail": "Method Not Allowed"}, 405), headers={"allow": ", ".join(known)})
        answer: Answer = route(asked)
        if path not in UNCOUNTED:
            key = (path, asked.method, f"{answer.status // 100}xx")
            self.engine.counts.http[key] = self.engine.counts.http.get(key, 0) + 1
        return answer

    def _allowed(self, asked: Asked) -> bool:
        scheme, _, key = asked.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key in self.keys

    def health(self, asked: Asked) -> Answer:
        if self.script.hang_health:
            return Answer(hang=True)
        time.sleep(self.script.health_delay)
        return Answer(503 if self.engine.dead else self.script.health_status, kind="")

    def models(self, asked: Asked) -> Answer:
        now = int(time.time())
        permission = {
            "id": f"modelperm-{os.urandom(8).hex()}", "object": "model_permission", "created": now, "allow_create_engine": False,
            "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False, "allow_view": True,
            "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        names = [self.script.served_model] if self.script.served_model else self.names
        cards = [
            {"id": name, "object": "model", "created": now, "owned_by": "vllm", "root": self.args.model, "parent": None,
             "max_model_len": self.max_len, "permission": [permission]} for name in names
        ]  # fmt: skip
        return reply({"object": "list", "data": cards})

    def metrics(self, asked: Asked) -> Answer:
        if not self.script.metrics_frozen or self.frozen_page is None:
            stats = not self.args.has("disable-log-stats")
            self.frozen_page = metrics.page(
                self.engine.counts, self.model, self.minor, self.max_len, engine_stats=stats
            )
        return Answer(200, self.frozen_page.encode(), "text/plain; version=1.0.0; charset=utf-8")

    def tokenize(self, asked: Asked) -> Answer:
        given = self._given(asked)
        words = str(given.get("prompt") or given.get("messages", "")).split()
        return reply(
            {"count": len(words), "max_model_len": self.max_len, "tokens": list(range(len(words))), "token_strs": None}
        )

    def embeddings(self, asked: Asked) -> Answer:
        given = self._given(asked)
        inputs = given.get("input", "")
        inputs = inputs if isinstance(inputs, list) else [inputs]
        if bad := self._run(asked, given, len(inputs), 0):
            return bad
        data = [{"index": index, "object": "embedding", "embedding": [0.6, 0.8, 0.0]} for index, _ in enumerate(inputs)]
        return reply({**self._frame("embd", "list"), "data": data, "usage": usage(len(inputs), 0)})

    def score(self, asked: Asked) -> Answer:
        given = self._given(asked)
        texts = given.get("text_2") or given.get("documents") or given.get("data_2") or ""
        texts = texts if isinstance(texts, list) else [texts]
        if bad := self._run(asked, given, len(texts), 0):
            return bad
        data = [{"index": index, "object": "score", "score": 0.97} for index, _ in enumerate(texts)]
        return reply({**self._frame("embd", "list"), "data": data, "usage": usage(len(texts), 0)})

    def rerank(self, asked: Asked) -> Answer:
        given = self._given(asked)
        texts = given.get("documents", [])
        if bad := self._run(asked, given, len(texts), 0):
            return bad
        results = [
            {"index": index, "document": {"text": text, "multi_modal": None}, "relevance_score": 0.9 / (index + 1)}
            for index, text in enumerate(texts)
        ]
        frame = {"id": f"rerank-{os.urandom(8).hex()}", "model": self.model}
        return reply({**frame, "usage": {"prompt_tokens": len(texts), "total_tokens": len(texts)}, "results": results})

    def completions(self, asked: Asked) -> Answer:
        from .text import completion, misranked

        return misranked(self, asked) or completion(self, asked, self._given(asked))

    def chat(self, asked: Asked) -> Answer:
        from .text import chat, misranked

        return misranked(self, asked) or chat(self, asked, self._given(asked))

    def _given(self, asked: Asked) -> dict[str, Any]:
        try:
            value = json.loads(asked.body or b"{}")
        except ValueError:
            value = {}
        return value if isinstance(value, dict) else {}

    def _frame(self, prefix: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{os.urandom(8).hex()}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }

    def start(self, asked: Asked, given: dict[str, Any], prompt: int, tokens: int, reason: str) -> Request | Answer:
        """Hands a request to the engine; an answer when it is refused or swallowed before."""
        name = given.get("model")
        if name and name not in self.names:
            return failure(
                f"The model `{name}` does not exist. Valid aliases: {', '.join(self.names)}.",
                "NotFoundError",
                404,
                "model",
            )
        if self.script.generate_status != 200:
            return failure("The fake was told to fail.", "InternalServerError", self.script.generate_status)
        if self.engine.closed:
            return failure(CLOSED, "InternalServerError", 500)
        first = self.script.first_generate_delay if not self.generated_once else 0.0
        self.generated_once = True
        time.sleep(self.script.generate_delay + first)
        if self.script.generate_hangs:
            return Answer(hang=True)
        request = Request(prompt, tokens, reason)
        self.engine.submit(request)
        return request

    def follow(self, asked: Asked, request: Request) -> Iterator[tuple[int, str | None]]:
        """How many tokens there are, each time there are more, and last why it ended; stops when the client hangs up."""
        seen = 0
        try:
            while not request.finished:
                request.wait(seen, 0.05)
                made = request.made
                if request.finished:
                    break
                if made > seen:
                    seen = made
                    yield made, None
                elif asked.client_gone():
                    return
            if request.finished != "dead":
                yield request.made, request.finished
        finally:
            request.aborted = request.aborted or not request.finished

    def _run(self, asked: Asked, given: dict[str, Any], prompt: int, tokens: int) -> Answer | None:
        """Runs a request to its end; an answer when that failed."""
        request = self.start(asked, given, prompt, max(tokens, 1), "stop")
        return request if isinstance(request, Answer) else self.ended_badly(asked, request)

    def ended_badly(self, asked: Asked, request: Request) -> Answer | None:
        """Waits for the end; an answer when there is nothing to tell."""
        for _ in self.follow(asked, request):
            pass
        if request.finished == "dead":
            return failure(DEAD, "InternalServerError", 500)
        return Answer(hang=True) if not request.finished else None


def missing(what: str) -> Answer:
    """The refusal of a body that lacks a field."""
    message = f"1 validation error:\n  {{'type': 'missing', 'loc': ('body', '{what}'), 'msg': 'Field required'}}"
    return failure(message, "Bad Request", 400, what)


def usage(prompt: int, made: int, thought: int | None = None) -> dict[str, Any]:
    """Token counts; `thought` are those of the reasoning, where a parser tells them apart."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made,
            "prompt_tokens_details": None, "completion_tokens_details": None if thought is None else {"reasoning_tokens": thought}}  # fmt: skip
