"""Looks at the page in a real browser and writes the pictures of docs/images.

`python tests/lab/gen_images.py [FOLDER]`; needs chromium (`make deps`). The page is served by a server of its own from
made-up moments, so that every situation can be seen on any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor"), str(ROOT / "tests")]

from lab.browser import BrowserError, browser  # noqa: E402 - only importable from here on
from lab.situations import FAILURE, SITUATIONS, trend  # noqa: E402

WIDTHS = {"desk": 1280, "phone": 390}


def render(name: str, **changes: object) -> bytes:
    """The page in one situation, with other values of /status where `changes` says so."""
    from vllm_supervisor.daemon.page_html import page

    now = time.monotonic()
    failure = FAILURE if name in {"waiting", "degraded"} else None
    return page({**SITUATIONS[name](), **changes}, trend(now, name), failure, now)


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


async def shoot(folder: Path) -> None:
    """Writes the pictures: every situation on a light desk and on a dark phone."""
    folder.mkdir(parents=True, exist_ok=True)
    with served() as port:
        async with browser() as tab:
            for name, (place, width) in itertools.product(SITUATIONS, WIDTHS.items()):
                dark = place == "phone"
                await tab.look(f"http://127.0.0.1:{port}/{name}", width=width, dark=dark)
                await tab.picture(folder / f"page-{name}-{place}-{'dark' if dark else 'light'}.png")


def main(arguments: list[str]) -> int:
    """Writes them where the documentation has them, or into another folder."""
    try:
        asyncio.run(shoot(Path(arguments[0]) if arguments else ROOT / "docs" / "images"))
    except BrowserError as error:
        print(f"gen_images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
