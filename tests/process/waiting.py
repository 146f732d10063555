"""Waiting with a deadline, ports, and one HTTP request: what every process test needs."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_S = 0.01


def tail(*paths: Path, lines: int = 40) -> str:
    """The ends of some files, for a failure's message."""
    parts = []
    for path in paths:
        text = path.read_bytes().decode(errors="replace") if path.exists() else "(no such file)"
        parts.append(f"--- {path.name}\n" + "\n".join(text.splitlines()[-lines:]))
    return "\n".join(parts)


def wait_until(fn: Callable[[], Any], timeout: float, what: str, *logs: Path) -> Any:
    """The first true value of `fn`; fails after `timeout` seconds with `what` and the tails of `logs`."""
    until = time.monotonic() + timeout
    while not (value := fn()):
        if time.monotonic() >= until:
            raise AssertionError(f"not within {timeout:g} s: {what}\n{tail(*logs)}")
        time.sleep(POLL_S)
    return value


PORTS = range(15_000, 32_000)
"""Below those that the kernel gives to whoever connects or asks for any (ip_local_port_range), so that none of them
takes a port between our look and its use."""
_GIVEN: set[int] = set()


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now, and another one at each call."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def http_get(
    where: int | str | Path,
    path: str,
    *,
    post: Any = None,
    headers: dict[str, str] | None = None,
    timeout: float = 10.0,
    tls: Any = None,
) -> Reply:
    """One request to a port of loopback, or to the unix socket at a path; `post` makes it a POST of JSON.

    Raises:
        OSError: refused, reset, timed out.
    """
    connection: http.client.HTTPConnection
    if not isinstance(where, int):
        connection = _UnixConnection(str(where), timeout)
    elif tls is not None:
        connection = http.client.HTTPSConnection("127.0.0.1", where, timeout=timeout, context=tls)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", where, timeout=timeout)
    try:
        body = None if post is None else json.dumps(post)
        kind = {} if post is None else {"Content-Type": "application/json"}
        connection.request("GET" if post is None else "POST", path, body, {**kind, **(headers or {})})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def refused(port: int) -> bool:
    """Whether nobody listens on a port of loopback."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0
