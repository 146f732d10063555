"""What the daemon's tests share: starting one with a fake engine, and looking at what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from process.fakes import SEGMENT, gone
from process.harness import SOURCE, Daemon, write_config
from process.waiting import tail, wait_until

NO_SMOKE = {"smoke": {"on_start": "off"}}


@contextlib.contextmanager
def running(
    folder: Path,
    fake: dict[str, Any] | None = None,
    *,
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    **tables: Any,
) -> Iterator[Daemon]:
    """A daemon with a fake engine in `folder`; its segments and processes are gone afterwards."""
    folder.mkdir(exist_ok=True)
    (folder / "notify").unlink(missing_ok=True)
    config = write_config(folder, fake, **{**NO_SMOKE, **tables})
    with Patient(config, folder, args=args, env=env, prefix=prefix) as daemon:
        yield daemon


class Patient(Daemon):
    """A daemon on a machine that may have much else to do; what its engine shared goes with it."""

    def __exit__(self, *what: object) -> None:
        # Killed outright, an engine leaves its segments, and only its maps say which they were.
        segments: set[str] = set()
        for pid in self.descendants():
            with contextlib.suppress(OSError):
                segments |= set(SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text()))
        super().__exit__(*what)
        for segment in segments:
            Path(segment).unlink(missing_ok=True)

    def wait(self, fn: Callable[[], Any], what: str, timeout: float = 60.0) -> Any:
        return super().wait(fn, what, at_most(timeout))

    def wait_phase(self, *phases: str, timeout: float = 60.0) -> dict[str, Any]:
        return super().wait_phase(*phases, timeout=timeout)

    def wait_exit(self, timeout: float = 60.0) -> int:
        return super().wait_exit(at_most(timeout))


def at_most(seconds: float) -> float:
    """A limit in seconds, stretched where the machine has more to do than it has cores."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until_ready(daemon: Daemon, timeout: float = 60.0) -> float:
    """When READY=1 came; fails at once when the daemon ends before."""
    messages = daemon.wait(lambda: daemon.notify and daemon.notify.having("READY"), "READY=1", timeout)
    return float(messages[0][0])


def told(daemon: Daemon, key: str) -> list[str]:
    """Every value of one key that the service manager was told, in order."""
    assert daemon.notify
    return [pairs[key] for _, pairs in daemon.notify.having(key)]


def marked(daemon: Daemon) -> list[int]:
    """Living processes of this test's engine, by its mark in their environment; the daemon itself not."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in {os.getpid(), daemon.pid}:
            continue
        with contextlib.suppress(OSError):
            if daemon.mark.encode() in Path(f"/proc/{entry}/environ").read_bytes() and not gone(int(entry)):
                found.append(int(entry))
    return found


def nothing_left(daemon: Daemon, segments: list[str] | tuple[str, ...] = ()) -> None:
    """No process of the engine, none of its shared-memory segments, no control socket."""
    assert marked(daemon) == [], daemon.log()
    left = [segment for segment in segments if Path(segment).exists()]
    assert left == [], daemon.log()
    assert not (daemon.runtime / "control.sock").exists()


def rows(daemon: Daemon) -> list[dict[str, Any]]:
    """The starts in the daemon's history, oldest first."""
    with contextlib.closing(sqlite3.connect(f"file:{daemon.state / 'history.sqlite'}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM starts ORDER BY id")]


def ended(daemon: Daemon, code: int, reason: str = "", timeout: float = 60.0) -> dict[str, Any]:
    """The history's row of a start that must end with `code` because of `reason`, nothing left behind."""
    found = daemon.wait_exit(timeout)
    row = rows(daemon)[-1]
    assert (found, row["exit_code"], row["reason"]) == (code, code, reason), tail(daemon.err)
    assert "Traceback" not in "".join(line for line in daemon.log().splitlines() if "vllm-supervisor:" in line)
    nothing_left(daemon)
    return row


def incident(daemon: Daemon) -> dict[str, Any]:
    """The verdict of the only incident."""
    (path,) = (daemon.state / "incidents").glob("*/verdict.json")
    return dict(json.loads(path.read_text()))


Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(page: str) -> dict[Sample, float]:
    """Every sample of a page of metrics by name and labels; the official parser must take the page."""
    return {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(found: dict[Sample, float], name: str, **labels: str) -> float | None:
    """One sample; None where it is absent."""
    return found.get((name, frozenset(labels.items())))


def verb(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Any other verb of the command line, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "vllm_supervisor", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **env},
    )


@contextlib.contextmanager
def stranger(port: int) -> Iterator[None]:
    """A server of somebody else that says 200 to everything on `port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


__all__ = [
    "at_most",
    "ended",
    "incident",
    "marked",
    "nothing_left",
    "rows",
    "running",
    "samples",
    "stranger",
    "told",
    "until_ready",
    "value",
    "verb",
    "wait_until",
]
