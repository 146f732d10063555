"""A supervisor in the foreground of a script: its display, its orderly end, and a look for what it may have left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_supervisor.adapters import control
from vllm_supervisor.daemon.display import Display, display_for

READY_S, STOP_S = 300.0, 60.0
MARK = "VSUP_DEMO"
"""Stands in the environment of everything that is started here; what carries it must be gone in the end."""


class ForegroundError(Exception):
    """It cannot go on; the message is one sentence with the remedy."""


class Screen:
    """Where a script speaks: above the display on a terminal, on standard output elsewhere."""

    def __init__(self) -> None:
        self.display: Display | None = None
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def say(self, text: str, style: str = "") -> None:
        """One line."""
        line = f"\x1b[{style}m{text}\x1b[0m" if style and self.colour else text
        if self.display is not None and self.display.fileno() != 2:
            os.write(self.display.fileno(), f"{line}\n".encode())
        else:
            print(line, flush=True)

    def step(self, text: str) -> None:
        """The headline of a step."""
        self.say(f"demo: {text}", "1;36")


@contextlib.contextmanager
def folder_of_ours() -> Iterator[Path]:
    """A directory that is gone afterwards, even when Ctrl-C comes while it is made or removed."""
    with held():
        made = tempfile.TemporaryDirectory(prefix="vsup-demo.", ignore_cleanup_errors=True)
    try:
        yield Path(made.name)
    finally:
        with held():
            made.cleanup()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Ctrl-C waits meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def supervised(screen: Screen, config: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The supervisor, ended in order whatever happens; then a look for what it may have left."""
    display = screen.display = display_for(2, os.environ)
    command = [sys.executable, "-m", "vllm_supervisor", "run", "--config", str(config)]
    command += ["--state-dir", str(folder / "state"), "--runtime-dir", str(folder / "run")]
    with held():
        # Started with SIGINT held, so that a Ctrl-C during its first moments waits until it listens for it.
        child = subprocess.Popen(command, stderr=display.fileno(), env={**os.environ, MARK: str(folder)})
    try:
        yield child
    except BaseException:
        _end(child)
        _look_for_leftovers(folder)
        raise
    else:
        code = _end(child)
        left = _look_for_leftovers(folder)
        if code != 0 or left:
            raise ForegroundError(
                f"the supervisor ended with {code} and left {left} processes; see its last lines above"
            )
    finally:
        screen.display = None
        display.close()


def _end(child: subprocess.Popen[bytes]) -> int:
    """Ends the supervisor as systemd does: SIGTERM, and SIGKILL when it takes too long."""
    with held():
        if child.poll() is None:
            child.terminate()
        try:
            return child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


def _look_for_leftovers(folder: Path) -> int:
    """Kills what still carries our mark; how many there were."""
    mark = f"{MARK}={folder}".encode()
    found = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
    return found


def watch(screen: Screen, folder: Path) -> dict[str, Any]:
    """What the supervisor says now, also shown; {} while it does not listen yet."""
    try:
        status = control.status(folder / "run" / "control.sock")
    except (control.NotRunningError, control.ControlError):
        return {}
    if screen.display is not None:
        screen.display.update(status)
    return status


def wait_ready(screen: Screen, child: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        status = watch(screen, folder)
        if status.get("ready"):
            return status
        if child.poll() is not None:
            raise ForegroundError(
                f"the supervisor ended with {child.returncode} before the engine was ready; see its last lines"
            )
        time.sleep(0.1)
    raise ForegroundError(f"the engine was not ready within {READY_S:.0f} s; see its last lines")
