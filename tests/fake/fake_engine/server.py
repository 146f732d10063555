"""HTTP/1.1 over TCP, TLS or a unix socket, one thread a connection, with uvicorn's manners."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .arguments import Arguments

PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip

DATE = "%a, %d %b %Y %H:%M:%S GMT"


@dataclass
class Asked:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    client_gone: Callable[[], bool] = lambda: False


@dataclass
class Answer:
    """`chunks` makes it a stream; `hang` means that nothing is ever said."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterator[bytes] | None = None
    hang: bool = False


class Server:
    """Binds at once, listens when it is told to: clients are refused until then, as by the real one."""

    def __init__(self, args: Arguments, port: int | None = None) -> None:
        self.args = args
        self.open = 0  # connections with a request being answered
        self.peers = "127.0.0.1:0"
        if args.has("uds"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.bind(args.text("uds"))
            self.port = 0
        else:
            host = args.text("host", "0.0.0.0")
            self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.sock.bind((host, args.number("port", 8000) if port is None else port))
            self.port = self.sock.getsockname()[1]
        self.tls = None
        if args.has("ssl-keyfile"):
            import ssl

            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(args.text("ssl-certfile"), args.text("ssl-keyfile"))

    def listen(self, answer: Callable[[Asked], Answer], log: Callable[[str], None], keep_alive: float) -> None:
        self.answer, self.log, self.keep_alive = answer, log, keep_alive
        self.sock.listen(2048)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        try:
            conn.settimeout(30)
            if self.tls:
                conn = self.tls.wrap_socket(conn, server_side=True)
            elif conn.family != socket.AF_UNIX:
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = conn.getpeername()
            name = f"{peer[0]}:{peer[1]}" if conn.family != socket.AF_UNIX else ""
            reader = conn.makefile("rb")
            conn.settimeout(self.keep_alive)
            while self._turn(conn, reader, name):
                conn.settimeout(self.keep_alive)
        except (OSError, ValueError):
            return  # the client's fault, or the end
        finally:
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)  # the reader holds the socket too
            conn.close()

    def _turn(self, conn: socket.socket, reader: object, name: str) -> bool:
        asked = read_request(reader)
        if asked is None:
            return False
        conn.settimeout(None)
        if not asked.method:
            send(conn, Answer(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8"), close=True)
            return False
        asked.client_gone = lambda: gone(conn)
        self.open += 1
        try:
            answer = self.answer(asked)
            while answer.hang:
                time.sleep(0.05)
                if gone(conn):
                    return False
            query = f"?{asked.query}" if asked.query else ""
            self.log(
                f'INFO:     {name} - "{asked.method} {asked.path}{query} HTTP/1.1" {answer.status} {PHRASES[answer.status]}'
            )
            close = asked.headers.get("connection", "").lower() == "close"
            send(conn, answer, head=asked.method == "HEAD", close=close)
        finally:
            self.open -= 1
        return not close


def read_request(reader: object) -> Asked | None:
    """The next request; None at the end of the connection, without a method when it is not HTTP."""
    first = reader.readline(65537)  # type: ignore[attr-defined]
    if not first:
        return None
    parts = first.decode("latin-1").split()
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return Asked("", "", "", {}, b"")
    headers: dict[str, str] = {}
    while line := reader.readline(65537).decode("latin-1").rstrip("\r\n"):  # type: ignore[attr-defined]
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(reader.readline().split(b";")[0], 16):  # type: ignore[attr-defined]
            body += reader.read(size)  # type: ignore[attr-defined]
            reader.readline()  # type: ignore[attr-defined]
        reader.readline()  # type: ignore[attr-defined]
    elif length := int(headers.get("content-length", "0")):
        body = reader.read(length)  # type: ignore[attr-defined]
    path, _, query = parts[1].partition("?")
    return Asked(parts[0], path, query, headers, body)


def send(conn: socket.socket, answer: Answer, *, head: bool = False, close: bool = False) -> None:
    lines = [
        f"HTTP/1.1 {answer.status} {PHRASES[answer.status]}",
        f"date: {time.strftime(DATE, time.gmtime())}",
        "server: uvicorn",
    ]
    if answer.status != 400 or answer.kind == "application/json":  # uvicorn's own refusal passes no middleware
        lines.append("vary: Origin")
    if answer.chunks is None:
        lines.append(f"content-length: {len(answer.body)}")
    if answer.kind:
        lines.append(f"content-type: {answer.kind}")
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.chunks is not None:
        lines.append("transfer-encoding: chunked")
    if close:
        lines.append("connection: close")
    start = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    if answer.chunks is None:
        conn.sendall(start if head else start + answer.body)
        return
    conn.sendall(start)
    try:
        for chunk in answer.chunks:
            conn.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        conn.sendall(b"0\r\n\r\n")
    finally:
        answer.chunks.close()  # type: ignore[attr-defined]


def gone(conn: socket.socket) -> bool:
    """Whether the client has hung up (told for plain sockets only)."""
    try:
        return conn.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, ValueError):
        return False
    except OSError:
        return True
