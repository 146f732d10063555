"""How soon READY, a death, a hang and an end are told: scripted engines for the many, a real one for the rest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lab import models, paths
from lab.bench_parts import REAL_ARGS, REAL_ENV, Row, first_answer, shell_loop
from process.harness import Daemon, NotifySocket, free_port, http_get, tail, wait_until, write_config

REAL_S = 240.0
SETTINGS = {"smoke": {"on_start": "off"}}


def ready_rows(starts: int) -> list[Row]:
    """READY after the first answer that the engine could give, beside a shell loop in the same starts."""
    ours: list[float] = []
    loops: list[float] = []
    for number in range(starts):
        # Different lengths, so that a loop of one second meets every part of its second.
        with (
            scripted({"pace": 1.0 + number * 0.37 % 1.0}) as daemon,
            shell_loop(daemon.engine_port) as loop,
            first_answer(daemon.engine_port, "kimi") as first,
            daemon,
        ):
            assert daemon.notify
            ready, _ = daemon.notify.wait_for("READY", 60)
            answered = first.wait(30)
            ours.append(ready - answered)
            loops.append(loop.wait(30) - answered)
            daemon.sigterm()
            daemon.wait_exit(30)
    return [
        Row(
            f"READY after the first possible answer, {starts} starts, median (longest)",
            f"{median(ours) * 1000:.0f} ms ({max(ours) * 1000:.0f} ms)",
            f"shell loop on /health each second: {median(loops) * 1000:.0f} ms ({max(loops) * 1000:.0f} ms), "
            f"ratio {median(ours) / median(loops):.2f}",
            "<= 100 ms",
            median(ours) * 1000,
            median(loops) * 1000,
            100,
        )
    ]


def death_rows(deaths: int = 10) -> list[Row]:
    """From the SIGKILL of a worker to its name in STATUS; /health of the scripted engine is as the real one's."""
    took = []
    for _ in range(deaths):
        with scripted({"workers": 2}) as daemon, daemon:
            assert daemon.notify
            daemon.wait_phase("ready", timeout=60)
            worker = daemon.wait(lambda: _process(daemon, "worker"), "the worker is known", 30)
            at = time.monotonic()
            os.kill(worker, signal.SIGKILL)
            named = daemon.wait(lambda notify=daemon.notify: _said(notify, "is gone"), "the death in STATUS", 30)
            took.append(named[0] - at)
            daemon.wait_exit(30)
    return [
        Row(
            f"a killed worker named in STATUS, {deaths} times, median (longest)",
            f"{median(took):.2f} s ({max(took):.2f} s)",
            "-",
            "<= 1 s",
            max(took),
            None,
            1,
        )
    ]


def hang_rows() -> list[Row]:
    """From the SIGSTOP of a worker under a request to the hang's name in STATUS, with the settings as shipped."""
    with scripted({"workers": 2, "token_delay": 0.2}) as daemon, daemon:
        assert daemon.notify
        daemon.wait_phase("ready", timeout=60)
        worker = daemon.wait(lambda: _process(daemon, "worker"), "the worker is known", 30)
        body = {"model": "kimi", "prompt": "Hi", "max_tokens": 100_000}

        def ask() -> None:
            with contextlib.suppress(OSError):
                http_get(daemon.engine_port, "/v1/completions", post=body, timeout=200)

        threading.Thread(target=ask, daemon=True).start()
        daemon.wait(lambda: daemon.status()["requests"].get("running"), "the request runs", 30)
        at = time.monotonic()
        os.kill(worker, signal.SIGSTOP)
        # What a loop on /health sees, once a second, until we have named it.
        codes: set[int] = set()
        while not (named := _said(daemon.notify, "engine-hung")):
            codes.add(http_get(daemon.engine_port, "/health", timeout=30).status)
            assert time.monotonic() - at < 150, "the hang was not named"
            time.sleep(1.0)
        took = named[0] - at
        daemon.wait_exit(60)
    return [
        Row(
            "a hang named in STATUS, settings as shipped (hang_after_s = 60)",
            f"{took:.0f} s",
            f"/health all the while: {', '.join(map(str, sorted(codes)))}",
            "<= 120 s",
            took,
            None,
            120,
        )
    ]


class Life(NamedTuple):
    """One life of a real engine: seconds to its first answer, and from SIGTERM to nothing left."""

    start: float
    stop: float


def real_rows(pairs: int) -> list[Row]:
    """A real engine to its first answer and to its end: alone and under the supervisor, in turn."""
    if not pairs:
        return []
    model = models.tiny_model()
    bare, under = [], []
    _bare(model)  # the first one fills the page cache for all
    for number in range(pairs):
        for kept, life in ((bare, _bare), (under, _under)) if number % 2 == 0 else ((under, _under), (bare, _bare)):
            kept.append(life(model))
    start, start_bare = (median(each.start for each in lives) for lives in (under, bare))
    stop, stop_bare = (median(each.stop for each in lives) for lives in (under, bare))
    return [
        Row(
            f"a real engine's first answer after the start, {pairs} pairs, median",
            f"{start:.1f} s (until READY), ratio {start / start_bare:.3f}",
            f"bare `vllm serve`: {start_bare:.1f} s",
            "ratio <= 1.02",
            start / start_bare,
            1.0,
            1.02,
        ),
        Row(
            f"SIGTERM when idle to nothing left, real engine, {pairs} pairs, median",
            f"{stop:.2f} s, {stop - stop_bare:+.2f} s",
            f"bare `vllm serve`: {stop_bare:.2f} s",
            "<= 2 s more",
            max(stop - stop_bare, 0.0),
            None,
            2,
        ),
    ]


@contextlib.contextmanager
def scripted(fake: dict) -> Iterator[Daemon]:
    """A daemon with a scripted engine, not started yet."""
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        yield Daemon(write_config(Path(name), fake, **SETTINGS), Path(name))


def _said(notify: NotifySocket, words: str) -> list[float]:
    """When STATUS held these words, in monotonic seconds."""
    return [when for when, each in notify.messages if words in each.get("STATUS", "")]


def _process(daemon: Daemon, role: str) -> int:
    processes = daemon.status().get("engine", {}).get("processes", {})
    return next((int(pid) for pid, each in processes.items() if each == role), 0)


def _bare(model: Path) -> Life:
    port = free_port()
    flags = {"host": "127.0.0.1", "port": port, "served-model-name": "kimi", **REAL_ARGS}
    command = [str(paths.vllm()), "serve", str(model)]
    command += [
        word
        for name, value in flags.items()
        for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
    ]
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        log = Path(name) / "engine.log"
        began = time.monotonic()
        with log.open("wb") as out:
            environment = {**os.environ, **REAL_ENV}
            child = subprocess.Popen(command, env=environment, start_new_session=True, stdout=out, stderr=out)
        try:
            with first_answer(port, "kimi") as first:
                wait_until(lambda: first.at or child.poll() is not None, REAL_S, "the bare engine answers", log)
                assert first.at, f"the bare engine ended by itself with {child.returncode}:\n{tail(log)}"
                answered = first.at
            stopping = time.monotonic()
            child.terminate()
            child.wait(60)
            wait_until(lambda: not _session(child.pid), 60, "nothing is left of the bare engine", log)
            ended = time.monotonic()
        finally:
            for pid in _session(child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return Life(answered - began, ended - stopping)


def _under(model: Path) -> Life:
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        engine = {"command": [str(paths.vllm()), "serve"], "model": str(model), "args": REAL_ARGS, "env": REAL_ENV}
        daemon = Daemon(write_config(Path(name), {}, engine=engine, **SETTINGS), Path(name))
        began = time.monotonic()
        with daemon:
            assert daemon.notify
            ready, _ = daemon.notify.wait_for("READY", REAL_S)
            stopping = time.monotonic()
            daemon.sigterm()
            daemon.wait_exit(60)
            return Life(ready - began, time.monotonic() - stopping)


def _session(leader: int) -> list[int]:
    """The living processes of a session, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found
