"""Asking the engine over HTTP, by way of aiohttp: the probe, the canary, its metrics, a chat.

Every call has a deadline and returns a value; no exception of the network leaves this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from vllm_supervisor.core.chat import RANK, SCALING, error_text, one_request
from vllm_supervisor.core.endpoint import Endpoint
from vllm_supervisor.core.events import Probed, ProbeOutcome
from vllm_supervisor.core.sightings import CanaryDone

HEALTH_TIMEOUT_S = 5.0
MODELS_TIMEOUT_S = 10.0
METRICS_TIMEOUT_S = 5.0
METRICS_LIMIT = 32 << 20

OVERDUE = "no answer in time"
"""The complaint about a deadline that has passed."""

Take = Callable[[Any, float], None]
"""Given each event of a stream and its seconds since the request."""

_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, UnicodeDecodeError)

StrangerCheck = Callable[[], str]
"""Says who holds the engine's port when it is not our engine; empty when it is, or cannot be known."""


class EngineHttp:
    """A client of one engine.

    Args:
        endpoint: The way to the engine.
        task: Which request proves that it can answer; `health` where /health is all there is.
        stranger: Looks up who holds the port.
        answer_timeout_s: Deadline of one real request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        task: str = "generate",
        stranger: StrangerCheck = lambda: "",
        answer_timeout_s: float = 100.0,
    ) -> None:
        self.endpoint = endpoint
        self.task = task
        self._stranger = stranger
        self._answer_timeout_s = answer_timeout_s
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            tls: ssl.SSLContext | bool = True
            if self.endpoint.tls:
                # The certificate names a public host, we come over the loopback: trust the
                # engine's own certificate, not its name.
                tls = ssl.create_default_context()
                tls.check_hostname = False
                try:
                    tls.load_verify_locations(self.endpoint.ca_file)
                except (OSError, ssl.SSLError):
                    tls.verify_mode = ssl.CERT_NONE
            # A connection a request: vLLM drops idle ones after five seconds (F3.6).
            connector = (
                aiohttp.UnixConnector(self.endpoint.uds, force_close=True)
                if self.endpoint.uds
                else aiohttp.TCPConnector(ssl=tls, force_close=True)
            )
            headers = {"Authorization": f"Bearer {self.endpoint.api_key}"} if self.endpoint.api_key else {}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, trust_env=False)
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, path: str, timeout_s: float, limit: int = 1 << 20) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._client().get(self.endpoint.url + path, timeout=timeout) as response:
            return response.status, await response.content.read(limit) if limit <= 1 << 20 else await response.read()

    async def post(self, path: str, body: dict[str, Any], timeout_s: float, headers: Any = None) -> tuple[int, Any]:
        """The status and the JSON of one POST.

        Raises:
            aiohttp.ClientError, OSError, TimeoutError, ValueError: it did not come through.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        url = self.endpoint.url + path
        async with self._client().post(url, json=body, timeout=timeout, headers=headers) as response:
            raw = await response.read()
            return response.status, json.loads(raw) if raw else None

    async def stream(self, path: str, body: dict[str, Any], timeout_s: float, take: Take) -> tuple[int, str]:
        """POST and give every event of the answer away as it comes.

        An answer that is no stream is given away as one event.

        Returns:
            The status (0 when there was none), and why it did not come through to its end; empty when it did.
        """
        began, status = time.monotonic(), 0
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._client().post(self.endpoint.url + path, json=body, timeout=timeout) as response:
                status = response.status
                if status != 200 or response.content_type != "text/event-stream":
                    raw = await response.read()
                    answer = _json(raw)
                    if status != 200:
                        return status, f"{path} says {status}: {error_text(answer or raw.decode(errors='replace'))}"
                    take(answer, time.monotonic() - began)
                    return status, ""
                async for line in response.content:
                    if line.startswith(b"data:") and b"[DONE]" not in line[:12]:
                        take(_json(line[5:]), time.monotonic() - began)
        except _ERRORS as error:
            return status, f"{path}: {_words(error)}"
        return status, ""

    async def probe(self, *, full: bool) -> Probed:
        """Ask /health; with `full` also who answers, /v1/models and one real request."""
        began = time.monotonic()
        try:
            status, _ = await self._get("/health", HEALTH_TIMEOUT_S)
        except aiohttp.ClientConnectorError:
            return Probed(ProbeOutcome.REFUSED, full, "connection refused")
        except _ERRORS as error:
            return Probed(ProbeOutcome.UNHEALTHY, full, f"/health: {_words(error)}")
        holder = await asyncio.to_thread(self._stranger)
        if holder:
            return Probed(ProbeOutcome.STRANGER, full, holder)
        if status != 200:
            return Probed(ProbeOutcome.UNHEALTHY, full, f"/health says {status}")
        if not full:
            return Probed(ProbeOutcome.HEALTHY, full, "", time.monotonic() - began)
        if self.task == "health":
            return Probed(ProbeOutcome.ANSWERED, full, "", time.monotonic() - began)
        wrong = await self._wrong_model()
        if wrong is not None:
            return wrong
        if self.task != "http":
            _, complaint = await self._one_request(self._answer_timeout_s)
            if complaint:
                return Probed(ProbeOutcome.NO_ANSWER, full, complaint, time.monotonic() - began)
        return Probed(ProbeOutcome.ANSWERED, full, "", time.monotonic() - began)

    async def _wrong_model(self) -> Probed | None:
        try:
            status, raw = await self._get("/v1/models", MODELS_TIMEOUT_S)
            if status != 200:
                return Probed(ProbeOutcome.NO_ANSWER, full=True, detail=f"/v1/models says {status}")
            models = [str(item.get("id")) for item in json.loads(raw).get("data", [])]
        except (*_ERRORS, AttributeError, TypeError) as error:
            return Probed(ProbeOutcome.NO_ANSWER, full=True, detail=f"/v1/models: {_words(error)}")
        if self.endpoint.model not in models:
            detail = f"/v1/models lists {', '.join(models) or 'nothing'}, not {self.endpoint.model}"
            return Probed(ProbeOutcome.WRONG_MODEL, full=True, detail=detail)
        return None

    async def _one_request(self, timeout_s: float, rank: int | None = None) -> tuple[int, str]:
        """The status (0: none) of one real request, and why it was not answered, if so; learns the engine's task."""
        path, body = one_request(self.task, self.endpoint.model)
        try:
            status, answer = await self.post(path, body, timeout_s, None if rank is None else {RANK: str(rank)})
        except _ERRORS as error:
            return 0, f"{path}: {_words(error)}"
        if status in {400, 404, 501} and self.task == "generate" and rank is None:
            # A pooling model has no completions: embed, else score (F1.4 "Supported tasks").
            for task in ("embed", "score"):
                path, body = one_request(task, self.endpoint.model)
                with contextlib.suppress(*_ERRORS):
                    other, answer = await self.post(path, body, timeout_s)
                    if other == 200:
                        self.task = task
                        return other, ""
        return status, "" if status == 200 else f"{path} says {status}: {error_text(answer)}"

    async def canary(self, timeout_s: float, rank: int | None = None) -> CanaryDone:
        """Ask for one token, or one embedding or score; of several engines the one of this rank (completions only)."""
        began, known = time.monotonic(), True
        if self.task in {"http", "health"}:
            path = "/health" if self.task == "health" else "/v1/models"
            try:
                status, _ = await self._get(path, timeout_s)
                complaint = "" if status == 200 else f"{path} says {status}"
            except _ERRORS as error:
                complaint = f"{path}: {_words(error)}"
        else:
            status, complaint = await self._one_request(timeout_s, rank)
            if rank is not None and 400 <= status < 500:  # has it no engine of that rank, or something else against it?
                other, complaint = await self._one_request(timeout_s)
                known = other == status
            elif status == 503 and SCALING in complaint:  # asked for by its operator, and bounded by vLLM itself
                known, complaint = False, ""
        return CanaryDone(not complaint, time.monotonic() - began, complaint, known=known)

    async def metrics(self) -> bytes | None:
        """The engine's own /metrics; None when it does not answer in time or not with 200."""
        try:
            status, raw = await self._get("/metrics", METRICS_TIMEOUT_S, METRICS_LIMIT)
        except _ERRORS:
            return None
        return raw if status == 200 else None


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return OVERDUE
    for kind, words in _PLAIN:
        if isinstance(error, kind):
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else ""
            return f"{words} ({why.lower()})" if why else words
    return str(error) or type(error).__name__


_PLAIN: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.ClientConnectorDNSError, "its address is not known"),
    (aiohttp.ClientConnectorCertificateError, "its certificate is not trusted"),
    (aiohttp.ClientConnectorSSLError, "it speaks no TLS, or another"),
    (aiohttp.ClientConnectorError, "nobody takes a connection there"),
    (aiohttp.ServerDisconnectedError, "the connection was closed without an answer"),
    (aiohttp.ClientPayloadError, "the connection broke within the answer"),
    (aiohttp.ClientOSError, "the connection broke"),
    (aiohttp.ClientResponseError, "what listens there speaks no HTTP"),
)
"""The library's errors in an operator's words; the first that fits, so that the narrower come first."""


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
