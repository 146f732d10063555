"""The harness that the daemon's tests stand on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import sdnotify

from process.harness import Daemon, NotifySocket, wait_until, write_config, write_environment
from vllm_supervisor.config.load import load


def test_the_notify_socket_records_messages_and_their_sender(tmp_path, monkeypatch):
    socket = NotifySocket(tmp_path / "notify")
    try:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notifier = sdnotify.SystemdNotifier(debug=True)
        notifier.notify("STATUS=Loading weights: shard 1 of 2 (50 %)")
        notifier.notify("READY=1\nSTATUS=Ready")
        at, pairs = socket.wait_for("READY", 5)
        assert pairs == {"READY": "1", "STATUS": "Ready"}
        assert socket.messages[0][0] <= at
        assert [message[1]["STATUS"] for message in socket.having("STATUS")] == [
            "Loading weights: shard 1 of 2 (50 %)",
            "Ready",
        ]
        assert set(socket.pids) == {os.getpid()}
        with pytest.raises(AssertionError, match=r"(?s)no such notification.*'READY': '1'"):
            socket.wait_for("STOPPING", 0.05)
    finally:
        notifier.socket.close()
        socket.close()


def test_a_wait_names_what_it_waited_for_and_shows_the_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("last words\n")
    with pytest.raises(AssertionError, match=r"(?s)not within 0.05 s: a miracle.*last words"):
        wait_until(lambda: False, 0.05, "a miracle", log)


def test_the_configuration_is_valid_and_overrides_are_laid_over(tmp_path):
    path = write_config(
        tmp_path,
        {"pace": "manual"},
        engine={"args": {"tensor-parallel-size": 2}, "env": {"A": "b"}},
        stall={"loading_weights": 1.5},
    )
    settings = load(path)
    assert not isinstance(settings, list), settings
    assert settings.engine.args == {"tensor-parallel-size": 2}
    assert settings.engine.env == {"FAKE_ENGINE": str(tmp_path / "fake.json"), "A": "b"}
    assert settings.stall.loading_weights == 1.5
    assert (Path(settings.engine.model) / "config.json").exists()


def test_a_daemon_that_ends_early_is_told_from_one_that_is_slow(tmp_path):
    config = write_config(tmp_path)
    with Daemon(config, tmp_path, args=("--no-such-option",)) as daemon:
        with pytest.raises(AssertionError, match=r"the daemon exited with \d+ before: phase ready"):
            daemon.wait_phase("ready")
        assert daemon.wait_exit() != 0


def test_the_environment_runs_the_fake_and_names_its_version(tmp_path):
    command = write_environment(tmp_path / "venv", "0.24.0")
    found = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=True)
    assert (found.stdout, found.stderr) == ("0.32.0\n", "")
    assert list(command.parent.parent.glob("lib/python3.*/site-packages/vllm-0.24.0.dist-info/METADATA"))
