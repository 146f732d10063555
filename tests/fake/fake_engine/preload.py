"""`vllm preload` of 0.32: a process a rank that holds its weights, a socket each, /health, and the ready line.

As there: the socket is made once the rank has all; the end of a rank while loading ends the others and the whole; later
it shows in /health alone; SIGTERM is handed on, and the status is the greatest of the ranks'.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .arguments import Arguments
from .script import Script
from .style import Line, Style

WEIGHTS = frozenset({"weight-cache-socket-dir", "weight-cache-health-host", "weight-cache-health-port"})


def hold(rank: int, directory: str, ready: Any, dies: bool) -> None:
    """One rank."""
    if dies:
        sys.exit(1)
    path = os.path.join(directory, f"vllm_weight_cache_{rank:032x}.sock")  # noqa: PTH118
    if os.path.exists(path):  # noqa: PTH110
        os.unlink(path)  # noqa: PTH108
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    ready.put(rank)
    while True:
        server.accept()[0].close()


def run(script: Script, args: Arguments) -> int:
    """The exit status."""
    unknown = [word for word in args.unknown if word.removeprefix("--") not in WEIGHTS]
    if unknown or not args.has("model"):
        sys.stderr.write(f"vllm: error: unrecognized arguments: {' '.join(unknown)}\n")
        return 2
    ranks, directory = args.number("tensor-parallel-size", 1), args.text("weight-cache-socket-dir")
    style = Style(script.version, script.style, ranks)

    def say(text: str, src: str, level: str = "INFO") -> None:
        os.write(1, style.render(Line("", "api", text, src, level), os.getpid()))

    context = multiprocessing.get_context("spawn")
    ready: Any = context.Queue()
    dying = script.worker_dies_rank if script.worker_dies_at == "loading-weights" else -1
    processes = [context.Process(target=hold, args=(rank, directory, ready, rank == dying)) for rank in range(ranks)]
    done = threading.Event()
    health(args, lambda: done.is_set() and all(process.exitcode is None for process in processes))
    for process in processes:
        process.start()

    def end(*_: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, end)
    seen: set[int] = set()
    while len(seen) < ranks or script.cut_at == "loading-weights":
        try:
            seen.add(ready.get(timeout=0.2))
        except queue.Empty:
            codes = [process.exitcode for process in processes]
            if any(code is not None for code in codes):
                text = f"Weight cache daemon rank(s) exited during startup (exitcodes={codes}); shutting down."
                say(text, "preload.py:238", "ERROR")
                end()
                break
    else:
        done.set()
        say(
            f"===== Weight cache daemon READY: node 0/1 serving {ranks} local rank(s) x 1 role(s) in {directory} =====",
            "preload.py:252",
        )
    for process in processes:
        process.join()
    return max(process.exitcode or 0 for process in processes) & 0xFF


def health(args: Arguments, well: Any) -> None:
    """/health, on its own thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response((200 if well() else 503) if self.path == "/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    address = args.text("weight-cache-health-host", "0.0.0.0"), args.number("weight-cache-health-port", 0)
    server = ThreadingHTTPServer(address, Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
