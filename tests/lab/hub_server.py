"""A hub on loopback: speaks the protocol of a model hub as far as a download needs it, and misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ETAG = '"{}"'


@dataclass
class Fault:
    """What goes wrong with one path; each kind so many times, then all is well.

    Attributes:
        drops: Connections that are cut in the middle of the body.
        statuses: Answers given instead, one after the other.
        damages: Bodies with a byte changed.
        listed_size: What the listing claims, instead of the size.
        stalls: Bodies of which one half is sent, and nothing more until the client is gone.
        promises: Answers whose Content-Length promises more bytes than are sent.
    """

    drops: int = 0
    statuses: list[int] = field(default_factory=list)
    damages: int = 0
    listed_size: int | None = None
    promises: int = 0
    stalls: int = 0


@dataclass
class HubServer:
    """Serves one repository; use it as a context manager.

    Attributes:
        files: Content by name.
        faults: By name; the name `listing` is the listing itself.
        token: Wanted of every request; empty for none.
        port: On loopback; 0 for any that is free.
        asked: (method, name, first byte) of every request for a file.
        revisions: Of every listing that was asked for.
    """

    files: dict[str, bytes]
    repo: str = "maker/model"
    token: str = ""
    port: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    revisions: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault(self, name: str) -> Fault:
        """The faults of a path, to be set or looked at."""
        return self.faults.setdefault(name, Fault())

    def fetched(self, name: str) -> list[int]:
        """The first bytes of the GETs for a file."""
        return [start for method, asked, start in self.asked if (method, asked) == ("GET", name)]

    def busy(self, more: int) -> None:
        """Count the transfers that run at the same time."""
        with self._lock:
            self._at_once += more
            self.most_at_once = max(self.most_at_once, self._at_once)


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Metadata of a file."""
        self._answer()

    def do_GET(self) -> None:
        """The listing, or a file."""
        self._answer()

    def _answer(self) -> None:
        hub = self.server_hub
        path = unquote(urlsplit(self.path).path)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._json(401, {"error": "Invalid credentials"}, {"X-Error-Code": "GatedRepo"})
            return
        listing = re.fullmatch(rf"/api/models/{hub.repo}(?:/revision/([^/]+))?", path)
        if listing:
            hub.revisions.append(listing[1] or "main")
            self._listing()
            return
        match = re.fullmatch(rf"/{hub.repo}/resolve/[^/]+/(.+)", path)
        if match and match[1] in hub.files:
            self._file(match[1])
            return
        code = "EntryNotFound" if match else "RepoNotFound"
        self._json(404, {"error": "not found"}, {"X-Error-Code": code})

    def _listing(self) -> None:
        hub = self.server_hub
        if self._refused("listing"):
            return
        self._json(200, {"id": hub.repo, "sha": COMMIT, "siblings": [_sibling(hub, name) for name in hub.files]}, {})

    def _refused(self, name: str) -> bool:
        fault = self.server_hub.fault(name)
        if not fault.statuses:
            return False
        self._json(fault.statuses.pop(0), {"error": "later"}, {"Retry-After": "0"})
        return True

    def _file(self, name: str) -> None:
        hub, fault = self.server_hub, self.server_hub.fault(name)
        content = hub.files[name]
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, "0"])[1])
        hub.asked.append((self.command, name, start))
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": ETAG.format(_identity(name, content)),
            "X-Linked-Size": str(len(content)),
            "Accept-Ranges": "bytes",
        }
        if self.command == "HEAD":
            self._head(200, {**headers, "Content-Length": str(len(content))})
            return
        if self._refused(name):
            return
        body = bytearray(content)
        if fault.damages:
            fault.damages -= 1
            body[len(body) // 2] ^= 0xFF
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        rest = bytes(body[start:])
        self._head(206 if start else 200, {**headers, "Content-Length": str(len(rest) + 7 * bool(fault.promises))})
        hub.busy(1)
        try:
            if fault.stalls:
                fault.stalls -= 1
                self.wfile.write(rest[: len(rest) // 2])
                self.wfile.flush()
                self.connection.recv(1)
                self.close_connection = True
                return
            if fault.promises:
                fault.promises -= 1
                self.wfile.write(rest)
                self.close_connection = True
                return
            if fault.drops:
                # A part of what is left, so that several cuts in a row still leave something.
                fault.drops -= 1
                self.wfile.write(rest[: max(len(rest) // 3, 1)])
                self.close_connection = True
                return
            self.wfile.write(rest)
        except OSError:
            self.close_connection = True
        finally:
            hub.busy(-1)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _json(self, status: int, value: Any, headers: dict[str, str]) -> None:
        body = json.dumps(value).encode()
        self._head(status, {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)


def _identity(name: str, content: bytes) -> str:
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sibling(hub: HubServer, name: str) -> dict[str, Any]:
    content = hub.files[name]
    claimed = hub.fault(name).listed_size
    wide = len(content) if claimed is None else claimed
    entry: dict[str, Any] = {"rfilename": name, "size": wide, "blobId": _identity(name, content)}
    if name.endswith(".safetensors"):
        entry["lfs"] = {"sha256": _identity(name, content), "size": wide, "pointerSize": 130}
    return entry
