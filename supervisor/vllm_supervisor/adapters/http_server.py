"""Our own HTTP server, by way of aiohttp: one TCP port, and a unix socket for the command line.

A busy port does not keep the model down: it is tried again until it is free. Handlers are given by
the daemon; this file only knows how to serve them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

RETRY_S = 2.0
SHUTDOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status, body, content type and further headers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Mapping[str, str]], Awaitable[Page]]
"""Gets the query's parameters."""


class HttpServer:
    """Serves pages on a TCP address and on a unix socket.

    Args:
        listen: `ADDRESS:PORT`; port 0 takes a free one.
        uds: Path of the unix socket; None for none.
        gets: Handlers of GET by path.
        posts: Handlers of POST by path; on the unix socket only, whose mode says who may.

    Attributes:
        port: The TCP port that is served; 0 while none is.
    """

    def __init__(
        self,
        listen: str,
        uds: Path | None,
        gets: Mapping[str, Handler],
        posts: Mapping[str, Handler] | None = None,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._uds = uds
        self._gets, self._posts = gets, posts or {}
        self._troubles = {"uds": "", "tcp": ""}
        self.port = 0
        self._runners: list[web.AppRunner] = []
        self._retry: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str:
        """What is not served and why; empty while everything is."""
        return "; ".join(filter(None, self._troubles.values()))

    async def start(self) -> None:
        """Serve what can be served now; the TCP port is tried again in the background."""
        if self._uds is not None:
            await self._serve_uds(self._uds)
        self._public = await self._runner(self._gets, {})
        if not await self._try_tcp():
            self._retry = asyncio.get_running_loop().create_task(self._keep_trying())

    async def _runner(self, gets: Mapping[str, Handler], posts: Mapping[str, Handler]) -> web.AppRunner:
        application = web.Application(client_max_size=1 << 16)
        for path, handler in gets.items():
            application.router.add_get(path, _wrapped(handler))
        for path, handler in posts.items():
            application.router.add_post(path, _wrapped(handler))
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_S, handle_signals=False)
        await runner.setup()
        self._runners.append(runner)
        return runner

    async def _serve_uds(self, path: Path) -> None:
        # A socket file of a dead daemon would keep us from binding.
        with contextlib.suppress(OSError):
            path.unlink()
        runner = await self._runner(self._gets, self._posts)
        try:
            await web.UnixSite(runner, str(path)).start()
            path.chmod(0o660)
        except OSError as error:
            self._troubles["uds"] = f"the control socket {path} cannot be made: {error.strerror or error}"

    async def _try_tcp(self) -> bool:
        site = web.TCPSite(self._public, self._host, self._port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            self._troubles["tcp"] = f"the metrics port {self._host}:{self._port} cannot be served: {_reason(error)}"
            return False
        self._troubles["tcp"] = ""
        addresses = self._public.addresses
        self.port = int(addresses[0][1]) if addresses else self._port
        return True

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if await self._try_tcp():
                return

    async def close(self) -> None:
        """Stop serving."""
        if self._retry is not None:
            self._retry.cancel()
        for runner in self._runners:
            await runner.cleanup()
        if self._uds is not None:
            with contextlib.suppress(OSError):
                self._uds.unlink()


def _wrapped(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(request: web.Request) -> web.Response:
        page = await handler(request.query)
        headers = {"Content-Type": page.content_type, "Cache-Control": "no-store", **page.headers}
        return web.Response(body=page.body, status=page.status, headers=headers)

    return respond


def _reason(error: OSError) -> str:
    # asyncio wraps the error in a sentence of its own; the number is what counts.
    return os.strerror(error.errno).lower() if error.errno else str(error)
