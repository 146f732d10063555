"""The handlers of our HTTP server: /metrics, /readyz, /healthz, /status, / and the control verbs."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm_supervisor.adapters.exposition import CONTENT_TYPE, merge, render
from vllm_supervisor.adapters.http_server import Handler, Page
from vllm_supervisor.core.neighbours import to_document
from vllm_supervisor.core.overview import last_failure
from vllm_supervisor.core.phases import Phase

from .page_html import CSS, HEADERS, SCRIPT, page
from .trend import EVERY_S, Trend
from .view import rates, requests, snapshot, status

if TYPE_CHECKING:
    from .perform import Parts
    from .reload import Reloader
    from .supervisor import Supervisor

ENGINE_WAIT_S = 2.0
"""A scrape waits so long for the engine's page, then goes without it."""

RETRY_AFTER_S = 5
LOOKED_BACK = 20
"""Starts among which the page looks for the last failure."""

HTML = "text/html; charset=utf-8"
ANSWER_S = 0.1


class Pages:
    """Answers from the present state; nothing here waits for anything but the engine's own page."""

    def __init__(self, parts: Parts, supervisor: Supervisor) -> None:
        self._parts = parts
        self._supervisor = supervisor
        self._trend = Trend()
        # Ends with the loop; it only reads.
        self._sampling = asyncio.get_running_loop().create_task(self._sample())

    def gets(self) -> dict[str, Handler]:
        """The pages by path."""
        return {
            "/metrics": self.metrics,
            "/readyz": self.readyz,
            "/healthz": self.healthz,
            "/status": self.status,
            "/": self.index,
            "/app.css": self.style,
            "/app.js": self.script,
        }

    def _status(self) -> dict[str, object]:
        now = asyncio.get_running_loop().time()
        return status(self._parts, self._supervisor.state, now, self._supervisor.note)

    async def metrics(self, _: Mapping[str, str]) -> Page:
        """Ours at once, the engine's when it answers."""
        loop = asyncio.get_running_loop()
        engine = await self._engine() if self._parts.instance.settings.metrics.engine == "merge" else None
        ours = render(snapshot(self._parts, self._supervisor.state, loop.time()))
        return Page(merge(ours, engine) if engine is not None else ours, CONTENT_TYPE)

    async def _engine(self) -> bytes | None:
        """The engine's own page; None when it does not answer, so that it vanishes."""
        if not self._supervisor.state.engine_alive or self._supervisor.state.gates.answered_at is None:
            return None
        # A stopped API server accepts and never answers; ours must be scraped all the same.
        return (await self._parts.watch.page.lately(ENGINE_WAIT_S)).page

    async def readyz(self, _: Mapping[str, str]) -> Page:
        """200 when ready; else 503 with the progress and when to ask again."""
        state = self._supervisor.state
        body = self._status()
        shown = {
            key: body[key] for key in ("instance", "phase", "ready", "status", "progress", "shards", "eta_seconds")
        }
        text = json.dumps(shown).encode() + b"\n"
        if state.phase is Phase.READY:
            return Page(text, "application/json")
        eta = shown["eta_seconds"]
        after = math.ceil(min(max(float(eta), 1.0), 60.0)) if isinstance(eta, (int, float)) else RETRY_AFTER_S
        return Page(text, "application/json", 503, {"Retry-After": str(after)})

    async def healthz(self, _: Mapping[str, str]) -> Page:
        """200 while the supervisor's own loop turns; it says nothing about the engine."""
        return Page(b"ok\n")

    async def status(self, _: Mapping[str, str]) -> Page:
        """Everything as JSON."""
        return Page(json.dumps(self._status(), indent=2).encode() + b"\n", "application/json")

    async def reload(self, reloader: Reloader) -> Page:
        """POST /reload: 409 with the reason, or 202 right before this image is replaced."""
        state = self._supervisor.state
        if state.phase is not Phase.READY:
            return Page(f"the engine is {state.phase}, not ready\n".encode(), status=409)
        refused = await reloader.check()
        if refused:
            return Page(f"{refused}\n".encode(), status=409)
        # The answer must be on its way before the image is replaced.
        asyncio.get_running_loop().call_later(ANSWER_S, reloader.go)
        return Page(json.dumps({"reloads": self._parts.reloads, "warning": reloader.warning}).encode(), status=202)

    def now(self) -> dict[str, object]:
        """What /status says at this moment."""
        return self._status()

    async def index(self, _: Mapping[str, str]) -> Page:
        """A page for people."""
        now = asyncio.get_running_loop().time()
        failure = last_failure(self._parts.history.rows(LOOKED_BACK))
        others = [to_document(claim) for claim in await asyncio.to_thread(self._parts.neighbours.others)]
        shown = {**self._status(), "neighbours": others}
        return Page(page(shown, self._trend.points(), failure, now), HTML, headers=HEADERS)

    async def style(self, _: Mapping[str, str]) -> Page:
        """The page's style sheet."""
        return Page(CSS, "text/css; charset=utf-8")

    async def script(self, _: Mapping[str, str]) -> Page:
        """The page's script."""
        return Page(SCRIPT, "text/javascript; charset=utf-8")

    async def _sample(self) -> None:
        while True:
            # The three figures only: the whole of /status takes a hundred times as long.
            now, state = asyncio.get_running_loop().time(), self._supervisor.state
            speed = rates(self._parts.watch, now)
            self._trend.add(now, ready=state.phase is Phase.READY, rates=speed, requests=requests(state))
            await asyncio.sleep(EVERY_S)
