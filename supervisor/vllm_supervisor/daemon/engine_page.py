"""The engine's own /metrics, fetched once for all who want it: our look at its counters, and whoever scrapes us."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

EVERY_S = 1.0
"""A page so young is not fetched again, unless what is decided must not be older than the question."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page, None when the engine did not answer, and when it was asked for (monotonic seconds)."""

    page: bytes | None = None
    at: float = float("-inf")


class EnginePage:
    """The last page that was fetched, and how to get a newer one.

    Args:
        fetch: Asks the engine; None when it does not answer.
    """

    def __init__(self, fetch: Callable[[], Awaitable[bytes | None]]) -> None:
        self._fetch = fetch
        self._last = Fetched()
        self._fetching: asyncio.Task[Fetched] | None = None

    async def now(self) -> Fetched:
        """The page as it is after this call."""
        asked = asyncio.get_running_loop().time()
        self._last = Fetched(await self._fetch(), asked)
        return self._last

    async def lately(self, wait_s: float | None = None) -> Fetched:
        """The page, at most `EVERY_S` old; none at all when it does not come within `wait_s` seconds."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._last.at < EVERY_S:
            return self._last
        if self._fetching is None or self._fetching.done():
            self._fetching = loop.create_task(self.now())
        await asyncio.wait({self._fetching}, timeout=wait_s)
        return self._fetching.result() if self._fetching.done() else Fetched()
