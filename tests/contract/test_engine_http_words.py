"""An engine that gives no answer is told in an operator's words, not in those of a library."""

from __future__ import annotations

import re
import socket
import threading

import pytest

from process.verbs import verb
from process.waiting import free_port
from vllm_supervisor.adapters.engine_http import EngineHttp
from vllm_supervisor.core.endpoint import Endpoint

LIBRARY = re.compile(r"Cannot connect|ssl:|Connect call|\[|aiohttp|Errno|None|object at|payload", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@pytest.fixture
def peer():
    """Something that takes connections and answers each with the bytes that it is given; its port."""
    server = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                taken, _ = server.accept()
            except OSError:
                return
            with taken:
                taken.settimeout(10)
                taken.recv(1 << 16)
                taken.sendall(answers[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1], answers
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


async def complaints(endpoint: Endpoint) -> list[str]:
    http = EngineHttp(endpoint, answer_timeout_s=20)
    try:
        _, streamed = await http.stream("/v1/chat/completions", {}, 20, lambda event, at: None)
        return [streamed, (await http.canary(20)).detail]
    finally:
        await http.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "the connection was closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what listens there speaks no HTTP"),
        (HEAD + b"{", "the connection broke within the answer"),
    ],
    ids=["nothing", "another protocol", "half"],
)
async def test_a_peer_that_is_no_engine(peer, answer, said):
    port, answers = peer
    answers.append(answer)
    found = await complaints(Endpoint(f"http://127.0.0.1:{port}", "kimi", port=port))
    assert [one.partition(": ")[2] for one in found] == [said, said]


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (
            lambda _: Endpoint(f"http://127.0.0.1:{free_port()}", "kimi"),
            "nobody takes a connection there (connection refused)",
        ),
        (
            lambda tmp: Endpoint("http://localhost", "kimi", uds=f"{tmp}/gone.sock"),
            "nobody takes a connection there (no such file or directory)",
        ),
    ],
    ids=["no listener", "no socket"],
)
async def test_no_peer_at_all(endpoint, said, tmp_path):
    found = await complaints(endpoint(tmp_path))
    assert [one.partition(": ")[2] for one in found] == [said, said]


async def test_a_peer_without_tls(peer):
    port, answers = peer
    answers.append(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    found = await complaints(Endpoint(f"https://127.0.0.1:{port}", "kimi", port=port, tls=True))
    assert not any(LIBRARY.search(one) for one in found), found
    assert all("TLS" in one or "connection" in one for one in found), found


def test_smoke_of_a_dead_engine_is_one_sentence_with_the_remedy(tmp_path):
    config, port = tmp_path / "dead.toml", free_port()
    config.write_text(f'[engine]\nmodel = "/m"\ndevice = "cpu"\nport = {port}\n')
    done = verb("smoke", config)
    assert done.code == 1, done
    assert done.out == ""
    assert done.err == (
        f"vllm-supervisor smoke: the engine at http://127.0.0.1:{port} gave no answer: /v1/chat/completions: nobody "
        f"takes a connection there (connection refused); `vllm-supervisor status {config}` says where it stands\n"
    )
