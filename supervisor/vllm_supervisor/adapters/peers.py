"""The one port on which the supervisors of a cluster speak: every byte authenticated, everything bounded.

Both sides prove that they know the shared secret before anything else is said (challenge and
response, HMAC-SHA256 over both nonces), and from then on every frame carries a MAC over its
direction and number under a key of this connection alone: nothing can be replayed, reflected,
reordered or changed. A stranger learns one random nonce and nothing else. Nothing is encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

NONCE = 32
MAC = 32
MAGIC = b"vllm-supervisor peer 1\n"
LONGEST = 64 * 1024
"""Bytes of one message; what a node says takes a few KiB."""

HANDSHAKE_S = 5.0
"""Whoever has not proven himself by then is cut off; seconds."""

FRAME_S = 10.0
"""A frame that was begun, or that cannot be written, ends the connection after so long; seconds."""

UNPROVEN = 16
"""Connections that may be in their handshake at once; further ones are closed at once."""

LEAST_SECRET = 16
"""Bytes; a shorter secret could be guessed from one recorded handshake."""

Side = Literal[b"client", b"server"]


class PeerError(Exception):
    """The other side cannot be spoken with; the message is one sentence."""


class WrongSecretError(PeerError):
    """The secrets differ."""


def read_secret(path: Path) -> bytes:
    """The shared secret in a file that only its owner (and, for a credential, its group) may read.

    Raises:
        PeerError: the file cannot be used; says why and what to do.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(4096).strip()
    except OSError as error:
        raise PeerError(f"{path}: the secret cannot be read: {error.strerror}") from None
    if mode & 0o037:
        raise PeerError(f"{path}: others may use this secret (mode {mode:04o}); run `chmod 600 {path}`")
    if len(secret) < LEAST_SECRET:
        raise PeerError(f"{path}: a secret of {len(secret)} bytes is too short; make one with `openssl rand -hex 32`")
    return secret


@dataclass(slots=True)
class Link:
    """One connection whose both ends have proven themselves; `sent` and `received` count bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes
    side: Side
    sent: int = 0
    received: int = 0
    _out: int = 0
    _in: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def _mac(self, side: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self.key, side + struct.pack(">QI", number, len(body)) + body, hashlib.sha256)

    async def send(self, body: bytes) -> None:
        """Say one message.

        Raises:
            PeerError: it is too long, or the other side takes nothing.
        """
        if len(body) > LONGEST:
            raise PeerError(f"a message of {len(body)} bytes is too long")
        async with self._lock:
            frame = struct.pack(">I", len(body)) + self._mac(self.side, self._out, body) + body
            self._out += 1
            try:
                async with asyncio.timeout(FRAME_S):
                    self.writer.write(frame)
                    await self.writer.drain()
            except (OSError, TimeoutError) as error:
                self.close()
                raise PeerError(f"the other side takes nothing: {type(error).__name__}") from None
            self.sent += len(frame)

    async def receive(self) -> bytes:
        """The next message; waits for its beginning without limit, then for its end `FRAME_S`.

        Raises:
            PeerError: the connection has ended, or what came was not said by the other side.
        """
        try:
            first = await self.reader.readexactly(1)
            async with asyncio.timeout(FRAME_S):
                head = first + await self.reader.readexactly(3 + MAC)
                length = int.from_bytes(head[:4], "big")
                body = await self.reader.readexactly(length) if length <= LONGEST else None
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise PeerError(f"the connection has ended: {type(error).__name__}") from None
        if body is None:
            self.close()
            raise PeerError(f"a frame of {length} bytes is too long")
        other = b"server" if self.side == b"client" else b"client"
        if not hmac.compare_digest(head[4:], self._mac(other, self._in, body)):
            self.close()
            raise PeerError("a frame does not come from the other side")
        self._in += 1
        self.received += len(head) + len(body)
        return body

    def close(self) -> None:
        """End the connection at once."""
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.transport.abort()


def _proof(secret: bytes, side: bytes, theirs: bytes, ours: bytes) -> bytes:
    return hmac.digest(secret, MAGIC + side + theirs + ours, hashlib.sha256)


async def _exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    try:
        return await reader.readexactly(length)
    except (OSError, EOFError):
        raise PeerError("the connection ended in its handshake") from None


async def _prove(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, side: Side, nonce: bytes
) -> Link:
    """Both send a nonce; the client proves itself first, so that a server reveals nothing to a stranger."""
    writer.write(nonce)
    theirs = await _exactly(reader, NONCE)
    server = side == b"server"
    of_client, of_server = (theirs, nonce) if server else (nonce, theirs)
    client_proof = _proof(secret, b"client", of_client, of_server)
    server_proof = _proof(secret, b"server", of_client, of_server)
    if server:
        if not hmac.compare_digest(await _exactly(reader, MAC), client_proof):
            raise WrongSecretError("the other side does not know our secret")
        writer.write(server_proof)
    else:
        writer.write(client_proof)
        try:
            answer = await _exactly(reader, MAC)
        except PeerError:
            raise WrongSecretError("the head refused our secret") from None
        if not hmac.compare_digest(answer, server_proof):
            raise WrongSecretError("the other side does not know our secret")
    return Link(reader, writer, _proof(secret, b"key", of_client, of_server), side)


async def connect(host: str, port: int, secret: bytes) -> Link:
    """A connection to the head.

    Raises:
        WrongSecretError: the secrets differ.
        PeerError: nobody answers there.
    """
    where = f"{host}:{port}"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(host, port, limit=LONGEST)
            return await _prove(reader, writer, secret, b"client", os.urandom(NONCE))
    except (OSError, TimeoutError, PeerError) as error:
        if writer is not None:
            writer.transport.abort()
        if isinstance(error, WrongSecretError):
            raise WrongSecretError(f"{where}: {error}; put the same secret on every node") from None
        what = str(error) if isinstance(error, PeerError) else getattr(error, "strerror", None) or "no answer"
        raise PeerError(f"{where}: {what}") from None


class Listener:
    """Takes connections of the other nodes.

    Args:
        secret: The shared secret.
        on_link: Called with every connection that has proven itself; owns it from then on.

    Attributes:
        refused: Connections that did not know the secret, or said something else.
        last_refused: The address of the last one.
        turned_away: Connections closed because too many were in their handshake.
    """

    def __init__(self, secret: bytes, on_link: asyncio.Queue[Link]) -> None:
        self._secret = secret
        self._on_link = on_link
        self._unproven = 0
        self._server: asyncio.Server | None = None
        self.refused = 0
        self.last_refused = ""
        self.turned_away = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; the port that is served.

        Raises:
            OSError: the address cannot be used.
        """
        self._server = await asyncio.start_server(self._accept, host, port, limit=LONGEST)
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._unproven >= UNPROVEN:
            self.turned_away += 1
            writer.transport.abort()
            return
        self._unproven += 1
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                link = await _prove(reader, writer, self._secret, b"server", os.urandom(NONCE))
            self._on_link.put_nowait(link)
        except (OSError, TimeoutError, PeerError, asyncio.QueueFull):
            self.refused += 1
            self.last_refused = str((writer.get_extra_info("peername") or ("",))[0])
            writer.transport.abort()
        finally:
            self._unproven -= 1

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
