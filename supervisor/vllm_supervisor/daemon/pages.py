"""The handlers of our HTTP server: /metrics, /readyz, /healthz, /status, / and the control verbs."""

from __future__ import annotations

import asyncio
import html
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm_supervisor.adapters.exposition import CONTENT_TYPE, merge, render
from vllm_supervisor.adapters.http_server import Handler, Page
from vllm_supervisor.core.phases import Phase

from .view import snapshot, status

if TYPE_CHECKING:
    from .perform import Parts
    from .supervisor import Supervisor

ENGINE_EVERY_S = 1.0
"""The engine's page is fetched when we are scraped, and no more often than this."""

RETRY_AFTER_S = 5


class Pages:
    """Answers from the present state; nothing here waits for anything but the engine's own page."""

    def __init__(self, parts: Parts, supervisor: Supervisor) -> None:
        self._parts = parts
        self._supervisor = supervisor
        self._engine_page: bytes | None = None
        self._engine_at = float("-inf")
        self._fetching: asyncio.Task[bytes | None] | None = None

    def gets(self) -> dict[str, Handler]:
        """The pages by path."""
        return {
            "/metrics": self.metrics,
            "/readyz": self.readyz,
            "/healthz": self.healthz,
            "/status": self.status,
            "/": self.index,
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
        """The engine's own page, at most a second old; None when it does not answer, so that it vanishes."""
        if not self._supervisor.state.engine_alive or self._supervisor.state.gates.answered_at is None:
            return None
        loop = asyncio.get_running_loop()
        if loop.time() - self._engine_at >= ENGINE_EVERY_S:
            if self._fetching is None or self._fetching.done():
                self._fetching = loop.create_task(self._parts.http.metrics())
            self._engine_page = await asyncio.shield(self._fetching)
            self._engine_at = loop.time()
        return self._engine_page

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

    async def index(self, _: Mapping[str, str]) -> Page:
        """A page for people."""
        body = self._status()
        rows = "".join(
            f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(str(body[key]))}</td></tr>"
            for key in ("phase", "status", "progress", "figures", "phases", "fault")
        )
        title = html.escape(f"{body['instance']}: {body['phase']}")
        page = (
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<meta http-equiv=refresh content=5><title>{title}</title><h1>{title}</h1><table>{rows}</table>"
            "<p><a href=/metrics>metrics</a> <a href=/status>status as JSON</a></html>"
        )
        policy = {"Content-Security-Policy": "default-src 'none'"}
        return Page(page.encode(), "text/html; charset=utf-8", headers=policy)
