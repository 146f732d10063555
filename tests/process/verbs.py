"""Running a verb of the command line as an operator does, with its output apart."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from process.harness import SOURCE

DEADLINE_S = 30.0


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would lead a verb to another instance or colour its output."""
    dropped = ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    return {
        **{name: value for name, value in os.environ.items() if name not in dropped},
        "PYTHONPATH": str(SOURCE),
        "TERM": "xterm-256color",
        **changes,
    }


def verb(*arguments: str | Path, **env: str) -> Done:
    """A verb with its output into pipes."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_supervisor", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(**env),
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def on_terminal(*arguments: str | Path, deadline_s: float = DEADLINE_S, **env: str) -> tuple[int, str]:
    """A verb on a terminal of 100 columns: its code and all that it painted."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_supervisor", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"COLUMNS": "100", **env}),
        start_new_session=True,
    )
    os.close(theirs)
    painted, until = b"", time.monotonic() + deadline_s
    try:
        while time.monotonic() < until:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed: it has ended
                break
            painted += piece
        return process.wait(max(until - time.monotonic(), 0.1)), painted.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
