"""This node's part in a cluster: what it says, what it hears, and what its start learns of that.

The decisions are those of `core.cluster`; here are the clock, the connections and the loop's queue.
What the node knows of the others is one value, `mind`, which only this class replaces; the start
itself learns of it by the event Peers alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vllm_supervisor.adapters.peers import PeerError, read_secret
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.cluster import part
from vllm_supervisor.core.cluster.messages import BEAT_S
from vllm_supervisor.core.cluster.wire import from_bytes, to_bytes
from vllm_supervisor.core.events import Event, Faulted, Peers
from vllm_supervisor.core.recording import decode, encode

from .links import Links

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.config.cluster import Cluster as Table
    from vllm_supervisor.core.state import State

    from .node import Facts


class Cluster:
    """Speaks with the other nodes from `begin` on; without a cluster it does nothing.

    Args:
        table: The settings; the rank is filled in.
        put: Takes an event, in the loop.
        log: Ours.
        secret: The file with the shared secret.
        look: Finds the facts; called in a worker thread.
        redact: Takes the secrets out of a text.

    Attributes:
        environment: What the engine must know of this node; complete before all nodes are there.
    """

    def __init__(
        self,
        table: Table,
        put: Callable[[Event], None],
        log: structlog.typing.FilteringBoundLogger,
        *,
        secret: Path,
        look: Callable[[], Facts],
        redact: Callable[[str], str],
    ) -> None:
        self._table, self._put, self._secret, self._look, self._redact = table, put, secret, look, redact
        self._mind: part.Mind | None = None
        self._own = part.Own()
        self._kick = asyncio.Event()
        self._links = Links(table, log, self._heard, self._kick.set)
        self._told = Peers()
        self._urgent: tuple[object, ...] = ()
        self._messages = 0
        self.environment: Mapping[str, str] = {}

    def begin(self) -> None:
        """Speak from now on; news come as Peers, and what makes it impossible as Faulted."""
        self._links.spawn(self._live(None))

    def carried(self) -> dict[str, Any]:
        """What the next image of this process must know."""
        return cast("dict[str, Any]", encode(self._mind)) if self._mind is not None else {}

    def resume(self, carried: Mapping[str, Any], state: State) -> None:
        """Go on where the image before left off."""
        if not carried:
            return
        self.follow(state)
        self._told = state.peers
        self._links.spawn(self._live(part.resumed(cast("part.Mind", decode(dict(carried))), self._now())))

    def follow(self, state: State) -> None:
        """This node's start went on: the others must know."""
        if self._table.nnodes == 1:
            return
        self._own = part.own(state)
        if self._mind is not None:
            self._becomes(part.followed(self._mind, self._own, self._now()))

    def table(self) -> dict[str, Any] | None:
        """Where every node stands, as plain JSON; None without a cluster.

        `heard` counts the messages of other nodes, `refused` the connections without the secret, since this image runs.
        """
        if self._table.nnodes == 1:
            return None
        nodes = part.table(self._mind, self._own, self._now()) if self._mind is not None else []
        return {
            "nnodes": self._table.nnodes,
            "rank": self._table.place,
            "nodes": nodes,
            "heard": self._messages,
            "refused": self._links.refused,
        }

    def figures(self) -> dict[str, Any]:
        """What /metrics shows of it; empty without a cluster, and until the nodes speak."""
        if self._mind is None:
            return {}
        return part.figures(part.table(self._mind, self._own, self._now()), self._table.place)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _live(self, mind: part.Mind | None) -> None:
        try:
            secret = read_secret(self._secret)
        except PeerError as error:
            advice = "Give every node the same secret (see docs/cluster.md)."
            self._put(Faulted(Cause("configuration-invalid", summary=str(error), advice=advice)))
            return
        facts = await asyncio.to_thread(self._look)
        if facts.trouble:
            advice = "Set it to the head's address in the network of the nodes."
            self._put(Faulted(Cause("configuration-invalid", summary=facts.trouble, advice=advice)))
            return
        self.environment = facts.environment
        if mind is None:
            table = self._table
            mind = part.begun(table.nnodes, table.place, secrets.token_hex(8), facts.prints, socket.gethostname())
        fault = await self._links.begin(secret)
        if fault is not None:
            self._put(Faulted(fault))
            return
        # The start may have gone on while we looked.
        self._becomes(part.followed(mind, self._own, self._now()))
        await self._beat()

    def _heard(self, body: bytes) -> None:
        message = from_bytes(body)
        self._messages += 1
        if self._mind is not None:
            self._becomes(part.heard(self._mind, message, self._now()))

    def _becomes(self, mind: part.Mind) -> None:
        """What is known now; said at once when others must know it, too."""
        self._mind = mind
        urgent = part.urgent(mind, self._own)
        if urgent != self._urgent:
            self._urgent = urgent
            self._kick.set()

    async def _beat(self) -> None:
        while True:
            assert self._mind is not None  # noqa: S101 - the beat begins with it, and nothing takes it away
            self._becomes(part.ticked(self._mind, self._now()))
            news = part.news(self._mind, self._links.trouble)
            if news != self._told or self._own.early:
                self._told = news
                self._put(news)
            self._links.say(self._words(self._mind))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._kick.wait()
            self._kick.clear()

    def _words(self, mind: part.Mind, *, away: bool = False) -> bytes:
        """Where we stand, as one message."""
        self._mind, message = part.said(mind, self._own, self._now(), away=away)
        return to_bytes(message, self._redact)

    async def close(self, *, away: bool) -> None:
        """Say a last word and speak no more; `away`: the next image of this process speaks on."""
        last = self._words(self._mind, away=away) if self._mind is not None else None
        await self._links.close(last)
