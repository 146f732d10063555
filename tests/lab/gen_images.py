"""Looks at the page in a real browser and writes the pictures of docs/images.

`python tests/lab/gen_images.py [FOLDER]`; needs chromium (`make deps`). The page is served by a server of its own from
made-up moments, so that every situation can be seen on any machine.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor"), str(ROOT / "tests")]

from lab.situations import FAILURE, SITUATIONS, trend  # noqa: E402 - only importable from here on

DESK, PHONE = (1280, 1500), (390, 2600)
BROWSER_S = 60.0


class BrowserError(Exception):
    """The browser does not run; the message is one sentence with the remedy."""


def render(name: str) -> bytes:
    """The page in one situation."""
    from vllm_supervisor.daemon.page_html import page

    now = time.monotonic()
    failure = FAILURE if name in {"waiting", "degraded"} else None
    return page(SITUATIONS[name](), trend(now, name), failure, now)


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


def browse(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a browser without a window to its end, with a profile that is thrown away.

    Raises:
        BrowserError: there is none, or it does not come to an end.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise BrowserError("chromium is missing: run `make deps`")
    with tempfile.TemporaryDirectory(prefix="vsup-browser.", ignore_cleanup_errors=True) as profile:
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=BROWSER_S)
        except subprocess.TimeoutExpired:
            raise BrowserError(f"{program} did not end within {BROWSER_S:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def shoot(url: str, target: Path, size: tuple[int, int], *, dark: bool) -> None:
    """A picture of a page.

    Raises:
        BrowserError: none was made.
    """
    done = browse(
        f"--screenshot={target}",
        f"--window-size={size[0]},{size[1]}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--virtual-time-budget=1000",
        url,
    )
    if not target.exists():
        raise BrowserError(f"no picture of {url} was made: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


def main(arguments: list[str]) -> int:
    """Writes all pictures."""
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with served() as port:
        for name in SITUATIONS:
            for width, size in (("desk", DESK), ("phone", PHONE)):
                for tone in ("light", "dark"):
                    target = folder / f"page-{name}-{width}-{tone}.png"
                    shoot(f"http://127.0.0.1:{port}/{name}", target, size, dark=tone == "dark")
                    print(target, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
