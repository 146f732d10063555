"""The connections of a node with the others: the head is spoken to by all, every other node speaks to the head."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters.peers import Link, Listener, PeerError, connect
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.cluster.messages import BEAT_S

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.config.cluster import Cluster as Table

MOST_WARNINGS = 20
LAST_WORD_S = 1.0
"""So long the end of the daemon waits for its last message to be taken; seconds."""


@dataclass(eq=False, slots=True)
class _Open:
    """One connection, and the message that is on its way."""

    link: Link
    sending: asyncio.Task[None] | None = None


class Links:
    """Keeps connections; what is said on them is no affair of this class.

    Args:
        table: The settings; the rank is filled in.
        log: Ours.
        heard: Takes one message; a ValueError ends its connection.
        opened: Called when a connection is there.

    Attributes:
        trouble: Why the head cannot be spoken with; empty when it can.
    """

    def __init__(
        self,
        table: Table,
        log: structlog.typing.FilteringBoundLogger,
        heard: Callable[[bytes], None],
        opened: Callable[[], None],
    ) -> None:
        self._table, self._log, self._on_message, self._on_open = table, log, heard, opened
        self._open: set[_Open] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._warned: set[str] = set()
        self.trouble = ""

    @property
    def refused(self) -> int:
        """Connections to the head that did not know the secret, since this image runs."""
        return self._listener.refused if self._listener is not None else 0

    def _warn(self, text: str) -> None:
        """Say it once; strangers must not fill the log."""
        if text not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(text)
            self._log.warning(text)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until `close`; a bug in it ends the daemon."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "speaking with the other nodes failed", "exception": task.exception(), "task": task},
            )

    async def begin(self, secret: bytes) -> Cause | None:
        """Take connections, or look for the head from now on; the cause when that cannot be."""
        if self._table.place:
            self.spawn(self._speak_to_head(secret))
            return None
        links: asyncio.Queue[Link] = asyncio.Queue(4 * self._table.nnodes)
        self._listener = Listener(secret, links)
        where = f"{self._table.head}:{self._table.port}"
        try:
            await self._listener.start(self._table.head, self._table.port)
        except OSError as error:
            summary = f"the port of the cluster cannot be opened: {where}: {error.strerror or error}"
            advice = "Let cluster.head be an address of this machine, and cluster.port one that is free."
            return Cause("port-in-use", summary=summary, advice=advice)
        self.spawn(self._take(links))
        return None

    async def _take(self, links: asyncio.Queue[Link]) -> None:
        while True:
            self.spawn(self._hear(await links.get()))

    async def _speak_to_head(self, secret: bytes) -> None:
        while True:
            try:
                link = await connect(self._table.head, self._table.port, secret)
            except PeerError as error:
                if self.trouble != str(error):
                    self.trouble = str(error)
                    self._log.info(f"the head cannot be spoken with: {error}")
            else:
                self.trouble = ""
                await self._hear(link)
            await asyncio.sleep(BEAT_S)

    async def _hear(self, link: Link) -> None:
        """Take what one connection brings, until it ends."""
        one = _Open(link)
        self._open.add(one)
        self._on_open()
        try:
            while True:
                self._on_message(await link.receive())
        except PeerError as error:
            self._log.debug(f"a connection of the cluster ended: {error}")
        except ValueError as error:
            self._warn(f"{error}; install the same vllm-supervisor on every node")
        finally:
            self._open.discard(one)
            link.close()

    def say(self, body: bytes) -> list[asyncio.Task[None]]:
        """Say one message on every connection that has taken the one before; a slow one delays no other."""
        if self._listener is not None and self._listener.refused:
            who = self._listener.last_refused
            self._warn(f"a connection from {who} to the cluster's port was refused: it does not know the secret")
        tasks = []
        for one in self._open:
            if one.sending is None or one.sending.done():
                one.sending = self.spawn(_send(one.link, body))
                tasks.append(one.sending)
        return tasks

    async def close(self, last: bytes | None) -> None:
        """Say a last message and end all connections."""
        if last is not None and self._open:
            sending = [one.sending for one in self._open if one.sending is not None]
            if sending:
                await asyncio.wait(sending, timeout=LAST_WORD_S)
            tasks = self.say(last)
            if tasks:
                await asyncio.wait(tasks, timeout=LAST_WORD_S)
        for task in list(self._tasks):
            task.cancel()
        if self._listener is not None:
            await self._listener.close()


async def _send(link: Link, body: bytes) -> None:
    with contextlib.suppress(PeerError):
        await link.send(body)
