"""The display of a run in the foreground, on a real terminal (tmux), and its absence elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from process.harness import Daemon, write_config
from process.verbs import environment
from process.waiting import wait_until
from vllm_supervisor.daemon.display import NoDisplay, display_for
from vllm_supervisor.daemon.progress import TerminalDisplay

RULE = "─" * 40


class Terminal:
    """A terminal of 100 columns and 30 lines in a server of its own."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self.socket, "-f", os.devnull, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=10, check=False)
        return done.stdout

    def start(self, command: list[str]) -> None:
        self.tmux("new-session", "-d", "-x", "100", "-y", "30", f"{shlex.join(command)}; echo ended $?; cat")

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-J")

    def everything(self) -> list[str]:
        return self.tmux("capture-pane", "-p", "-J", "-S", "-3000").splitlines()

    def wait(self, text: str) -> str:
        return wait_until(lambda: self.screen() if text in self.screen() else "", 30, f"{text!r} on {self.screen()}")


@pytest.fixture
def terminal(tmp_path) -> Iterator[Terminal]:
    # A socket's path is short; pytest's own directories can be too long.
    folder = tempfile.mkdtemp(prefix="vsup-tmux.")
    made = Terminal(f"{folder}/socket")
    yield made
    made.tmux("kill-server")
    shutil.rmtree(folder)


def run_command(tmp_path, config) -> list[str]:
    where = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
    return [sys.executable, "-m", "vllm_supervisor", "run", "--config", str(config), *where]


def test_the_display_stands_below_the_output_and_goes_away(tmp_path, terminal):
    config = write_config(tmp_path, {"load": "kimi", "scale": 0.008}, smoke={"on_start": "off"})
    terminal.start(run_command(tmp_path, config))
    screen = terminal.wait(" of 119")
    lines = [line for line in screen.splitlines() if line.strip()]
    place = lines.index(RULE)
    assert "fake  loading-weights" in lines[place + 1]
    assert "shard" in lines[place + 2]
    assert "Loading weights: shard" in lines[place + 3]
    assert "✓ launching" in lines[place + 4]
    assert len(lines) == place + 5, screen
    assert RULE not in lines[:place]
    terminal.wait("kimi answers at http://127.0.0.1:")
    terminal.tmux("send-keys", "C-c")
    terminal.wait("ended 0")
    everything = terminal.everything()
    assert RULE not in everything
    # Each line of the engine's bar passed by once, whole and in order.
    bar = [line for line in everything if line.startswith("Loading safetensors checkpoint shards:")]
    counted = [int(line.split("|")[1].split("/")[0]) for line in bar]
    assert counted == sorted(counted)
    assert set(counted) >= {0, 60, 119}
    assert "vllm-supervisor: stopped on request (SIGINT) (exit 0)" in everything


def test_elsewhere_there_is_none(tmp_path):
    assert isinstance(display_for(2, {"TERM": "dumb"}), NoDisplay)
    config = write_config(tmp_path, {"pace": 0.1})
    with Daemon(config, tmp_path) as daemon:
        daemon.wait_phase("ready")
        assert "\x1b" not in daemon.log()
        assert RULE not in daemon.log()


def test_a_service_on_a_terminal_has_none(tmp_path):
    ours, theirs = os.openpty()
    try:
        assert isinstance(display_for(theirs, {"TERM": "xterm", "NOTIFY_SOCKET": "/run/x"}), NoDisplay)
        assert isinstance(display_for(theirs, {}), NoDisplay)
        display = display_for(theirs, {"TERM": "xterm"})
        assert isinstance(display, TerminalDisplay)
        os.write(display.fileno(), b"whole\nand torn")
        display.close()
        assert os.read(ours, 1000).replace(b"\r\r", b"\r") == b"whole\r\nand torn\r\n"
    finally:
        os.close(ours)
        os.close(theirs)
