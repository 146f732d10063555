"""The peer port: those who know the secret speak, and nobody else gets a word in or out."""

import asyncio
import contextlib
import os
import struct

import pytest

from vllm_supervisor.adapters import peers
from vllm_supervisor.adapters.peers import Listener, PeerError, WrongSecretError, connect, read_secret

SECRET = b"0123456789abcdef0123456789abcdef"
HOST = "127.0.0.1"
WAIT_S = 10.0


@contextlib.asynccontextmanager
async def listening(secret=SECRET):
    links = asyncio.Queue(4)
    listener = Listener(secret, links)
    port = await listener.start(HOST, 0)
    try:
        yield listener, port, links
    finally:
        while not links.empty():
            links.get_nowait().close()
        await listener.close()


@contextlib.asynccontextmanager
async def pair():
    async with listening() as (_, port, links):
        client = await connect(HOST, port, SECRET)
        server = await asyncio.wait_for(links.get(), WAIT_S)
        try:
            yield client, server
        finally:
            client.close()
            server.close()


async def everything(reader):
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(4096), WAIT_S)
    return b""


async def until(condition):
    async with asyncio.timeout(WAIT_S):
        for _ in range(100_000):
            if condition():
                return
            await asyncio.sleep(0.01)


async def test_both_directions_in_order():
    async with pair() as (client, server):
        for number in range(50):
            await client.send(b"up %d" % number)
            await server.send(b"down %d" % number)
        for number in range(50):
            assert await server.receive() == b"up %d" % number
            assert await client.receive() == b"down %d" % number
        assert client.sent == server.received > 0


async def test_the_longest_message_passes_and_a_longer_one_is_refused():
    async with pair() as (client, server):
        whole = os.urandom(peers.LONGEST)
        sending = asyncio.create_task(client.send(whole))
        assert await server.receive() == whole
        await sending
        with pytest.raises(PeerError, match="too long"):
            await client.send(whole + b"x")


async def test_a_wrong_secret_is_named_on_both_sides():
    async with listening() as (listener, port, links):
        with pytest.raises(WrongSecretError, match="the head refused our secret"):
            await connect(HOST, port, b"another secret of some length")
        await until(lambda: listener.refused)
        assert listener.last_refused == HOST
        assert links.empty()


async def test_a_head_that_does_not_know_the_secret_is_not_believed():
    async def impostor(reader, writer):
        writer.write(os.urandom(peers.NONCE))
        await reader.readexactly(peers.NONCE + peers.MAC)
        writer.write(os.urandom(peers.MAC))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(impostor, HOST, 0)
    try:
        with pytest.raises(WrongSecretError, match="does not know our secret"):
            await connect(HOST, server.sockets[0].getsockname()[1], SECRET)
    finally:
        server.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 8, b"\0" * 64, os.urandom(100_000)])
async def test_a_stranger_learns_one_nonce_and_nothing_else(said):
    async with listening() as (listener, port, links):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(said)
        if not said:
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        heard = await everything(reader)
        assert len(heard) in {0, peers.NONCE}
        assert await everything(reader) == b""
        writer.transport.abort()
        await until(lambda: listener.refused)
        assert links.empty()


async def test_a_reflected_proof_proves_nothing():
    async with listening() as (listener, port, links):
        reader, writer = await asyncio.open_connection(HOST, port)
        nonce = await reader.readexactly(peers.NONCE)
        writer.write(nonce + os.urandom(peers.MAC))
        assert await everything(reader) == b""
        await until(lambda: listener.refused)
        assert links.empty()
        writer.transport.abort()


async def test_a_recorded_conversation_cannot_be_replayed():
    recorded = bytearray()
    async with listening() as (listener, port, links):

        async def tap(reader, writer):
            far_reader, far_writer = await asyncio.open_connection(HOST, port)

            async def pump(source, sink, keep):
                with contextlib.suppress(ConnectionError):
                    while piece := await source.read(65536):
                        recorded.extend(piece if keep else b"")
                        sink.write(piece)

            await asyncio.gather(pump(reader, far_writer, True), pump(far_reader, writer, False))
            far_writer.transport.abort()
            writer.transport.abort()

        proxy = await asyncio.start_server(tap, HOST, 0)
        client = await connect(HOST, proxy.sockets[0].getsockname()[1], SECRET)
        server = await asyncio.wait_for(links.get(), WAIT_S)
        await client.send(b"fate: stopped")
        assert await asyncio.wait_for(server.receive(), WAIT_S) == b"fate: stopped"
        client.close()
        server.close()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(bytes(recorded))
        assert len(await everything(reader)) == peers.NONCE
        await until(lambda: listener.refused)
        assert links.empty()
        writer.transport.abort()
        proxy.close()


def frame(link, number, body, side):
    return struct.pack(">I", len(body)) + link._mac(side, number, body) + body


FORGED = {
    "repeated": lambda link: frame(link, 0, b"first", b"client") * 2,
    "skipped": lambda link: frame(link, 7, b"later", b"client"),
    "reflected": lambda link: frame(link, 0, b"own", b"server"),
    "changed": lambda link: frame(link, 0, b"abc", b"client")[:-1] + b"d",
    "giant": lambda _: b"\xff\xff\xff\xff" + b"\0" * peers.MAC,
    "garbage": lambda _: b"\0\0\0\x05" + os.urandom(peers.MAC + 5),
}


@pytest.mark.parametrize("how", FORGED)
async def test_a_forged_frame_ends_the_connection(how):
    async with pair() as (client, server):
        client.writer.write(FORGED[how](client))
        if how == "repeated":
            assert await asyncio.wait_for(server.receive(), WAIT_S) == b"first"
        with pytest.raises(PeerError):
            await asyncio.wait_for(server.receive(), WAIT_S)
        assert server.writer.transport.is_closing()


async def test_a_frame_that_never_ends_ends_the_connection(monkeypatch):
    monkeypatch.setattr(peers, "FRAME_S", 0.2)
    async with pair() as (client, server):
        client.writer.write(b"\0\0")
        with pytest.raises(PeerError, match="TimeoutError"):
            await asyncio.wait_for(server.receive(), WAIT_S)


async def test_slow_strangers_are_cut_off_and_few_at_a_time(monkeypatch):
    monkeypatch.setattr(peers, "HANDSHAKE_S", 0.5)
    async with listening() as (listener, port, links):
        strangers = [await asyncio.open_connection(HOST, port) for _ in range(peers.UNPROVEN + 4)]
        await until(lambda: listener.refused + listener.turned_away == len(strangers))
        assert listener.turned_away >= 1
        monkeypatch.setattr(peers, "HANDSHAKE_S", WAIT_S)
        (await connect(HOST, port, SECRET)).close()
        (await asyncio.wait_for(links.get(), WAIT_S)).close()
        for _, writer in strangers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_nobody_there_is_one_sentence():
    async with listening() as (_, port, _links):
        pass
    with pytest.raises(PeerError, match=rf"^{HOST}:{port}: "):
        await connect(HOST, port, SECRET)


def test_a_secret_is_the_owners_and_long_enough(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(PeerError, match="cannot be read"):
        read_secret(path)
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(PeerError, match="chmod 600"):
        read_secret(path)
    path.chmod(0o440)
    assert read_secret(path) == b"0123456789abcdef"
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(PeerError, match="too short"):
        read_secret(path)
