"""Who holds a port, and how many are connected to it, as /proc shows it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from vllm_supervisor.adapters import sock_diag, sockets
from vllm_supervisor.adapters.sockets import holder, listeners
from vllm_supervisor.daemon.watch import connected

LISTEN = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"


@pytest.fixture
def other():
    """Another process that listens on a port: its pid and the port."""
    child = subprocess.Popen([sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield child.pid, int(child.stdout.readline())
    child.stdin.close()
    child.wait(10)
    child.stdout.close()


@pytest.mark.parametrize("connections", [sock_diag.connections, sockets.connections], ids=["kernel", "proc"])
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_are_counted_from_the_servers_side(family, host, connections):
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert len(listeners(port)) == 1
        assert connections(port) == 0
        with socket.create_connection((host, port)) as client:
            accepted, _ = server.accept()
            assert connections(port) == 1, "the client's own end is not one"
            assert client.getsockname()[1] != port
            accepted.close()
    assert listeners(port) == set()


def test_more_connections_than_one_message_of_the_kernel_holds():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ends = [end for _ in range(400) for end in (socket.create_connection(("127.0.0.1", port)), server.accept()[0])]
        assert sock_diag.connections(port) == sockets.connections(port) == 400
        for end in ends:
            end.close()


def test_where_the_kernel_does_not_answer_proc_does(monkeypatch):
    monkeypatch.setattr(sock_diag, "_GETSOCK", 99)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            with pytest.raises(OSError, match="does not tell of sockets"):
                sock_diag.connections(port)
            assert connected(port) == 1
            accepted.close()


def test_a_port_that_nobody_holds_has_no_holder(other):
    pid, port = other
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert holder(free, [os.getpid()]) == ""
    assert holder(port, [pid]) == "", "ours is no stranger"


def test_a_stranger_is_named(other):
    pid, port = other
    said = holder(port, [os.getpid()])
    assert re.fullmatch(rf"port {port} is held by another process: pid {pid} \(python[0-9.]*\)", said)


def test_a_process_of_ours_that_is_gone_holds_nothing(other):
    pid, port = other
    assert f"pid {pid}" in holder(port, [os.getpid(), 2**22 - 3])


def _tree(proc, *, readable):
    """A /proc in which a stranger's and our process's descriptors can, or cannot, be read."""
    (proc / "net").mkdir()
    row = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n"
    (proc / "net" / "tcp").write_text("  sl  local_address rem_address   st\n" + row)
    for pid in ("10", "20"):
        (proc / pid / "fd").mkdir(parents=True)
    (proc / "20" / "comm").write_text("nginx\n")
    (proc / "20" / "fd" / "3").symlink_to("socket:[4711]")
    if not readable:
        (proc / "10" / "fd").rmdir()
        (proc / "10" / "fd").write_text("a file: listing it fails, whoever asks")


@pytest.mark.parametrize("readable", [True, False])
def test_a_verdict_needs_certainty(tmp_path, readable):
    _tree(tmp_path, readable=readable)
    said = holder(8000, [10], tmp_path)
    assert said == ("port 8000 is held by another process: pid 20 (nginx)" if readable else "")
    assert listeners(8000, tmp_path) == {4711}
    assert listeners(8001, tmp_path) == set()
    assert holder(8000, [10], tmp_path / "nothing") == ""
