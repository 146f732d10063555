"""The page of made-up moments behind a server of its own, so that every situation can be seen on any machine."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator

from lab.situations import FAILURES, SITUATIONS, trend

WIDTHS = {"desk": 1280, "phone": 390}
TONES = {"light": False, "dark": True}


def picture_name(situation: str, place: str, tone: str) -> str:
    """The file of a picture in docs/images."""
    return f"page-{situation}-{place}-{tone}.png"


PICTURES = {
    picture_name(situation, place, tone): width
    for situation in SITUATIONS
    for place, width in WIDTHS.items()
    for tone in TONES
}
"""All pictures by name, with their width in pixels."""


def render(name: str, **changes: object) -> bytes:
    """The page in one situation, with other values of /status where `changes` says so."""
    from vllm_supervisor.daemon.page_html import page

    now = time.monotonic()
    return page({**SITUATIONS[name](), **changes}, trend(now, name), FAILURES.get(name), now)


@contextlib.contextmanager
def served(body: Callable[[str], bytes] = render) -> Iterator[int]:
    """The port of a server that gives `body(NAME)` at /NAME, with the page's headers and its two files."""
    from vllm_supervisor.daemon.page_html import CSS, HEADERS, SCRIPT

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = {"/app.css": ("text/css", CSS), "/app.js": ("text/javascript", SCRIPT)}
            kind, data = files.get(self.path) or ("text/html; charset=utf-8", body(self.path.strip("/")))
            self.send_response(200)
            for key, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
