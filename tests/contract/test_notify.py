"""The notify socket: heard when it is there, counted when it is not, never an exception and never a wait."""

from __future__ import annotations

import os
import socket
import time

import pytest

from vllm_supervisor.adapters.notify import VARIABLES, NullNotifier, SystemdNotifier, from_environment


@pytest.fixture
def listening(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


@pytest.fixture
def clean(monkeypatch):
    """An environment in which the adapter may take variables out; it is as before afterwards."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    return monkeypatch


def close(notifier):
    notifier._notifier.socket.close()


def test_fields_arrive_in_one_datagram_in_their_order(tmp_path, listening):
    notifier = SystemdNotifier(str(tmp_path / "notify"))
    assert notifier.send(ready="1", status="Ready")
    assert listening.recv(4096) == b"READY=1\nSTATUS=Ready"
    assert notifier.errors == 0
    close(notifier)


def test_text_beyond_ascii_arrives_and_stays_one_line(tmp_path, listening):
    # sdnotify alone loses such a text without a word.
    notifier = SystemdNotifier(str(tmp_path / "notify"))
    assert notifier.send(status="Loading → 50 % 模型\nREADY=1")
    assert listening.recv(4096) == b"STATUS=Loading ? 50 % ?? READY=1"
    close(notifier)


def test_nobody_listens_in_the_foreground(clean):
    notifier, watchdog, taken = from_environment()
    assert (watchdog, taken) == (None, {})
    assert isinstance(notifier, NullNotifier)
    assert notifier.send(ready="1")
    assert notifier.errors == 0


def test_variables_leave_the_environment_and_are_given_back_for_a_re_execution(tmp_path, listening, clean):
    clean.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    clean.setenv("WATCHDOG_USEC", "30000000")
    clean.setenv("WATCHDOG_PID", str(os.getpid()))
    clean.setenv("LISTEN_FDS", "1")
    notifier, watchdog, taken = from_environment()
    assert watchdog == 30.0
    assert set(taken) == {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS"}
    assert not [name for name in VARIABLES if name in os.environ]
    assert notifier.send(watchdog="1")
    assert listening.recv(64) == b"WATCHDOG=1"
    close(notifier)


@pytest.mark.parametrize(("usec", "pid"), [("nonsense", ""), ("0", ""), ("30000000", "1")])
def test_a_watchdog_that_is_not_ours_is_none(tmp_path, listening, clean, usec, pid):
    clean.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    clean.setenv("WATCHDOG_USEC", usec)
    if pid:
        clean.setenv("WATCHDOG_PID", pid)
    notifier, watchdog, _ = from_environment()
    assert watchdog is None
    close(notifier)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sdnotify leaves its socket open
def test_a_socket_that_is_not_there_is_counted(tmp_path, clean):
    clean.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notifier, _, _ = from_environment()
    assert notifier.errors == 1


def test_a_socket_that_goes_away_is_counted(tmp_path, listening):
    notifier = SystemdNotifier(str(tmp_path / "notify"))
    listening.close()
    assert not notifier.send(status="unheard")
    assert notifier.errors == 1
    close(notifier)


def test_a_full_socket_costs_no_time(tmp_path, listening):
    notifier = SystemdNotifier(str(tmp_path / "notify"))
    began = time.monotonic()
    sent = 0
    while notifier.send(status="x" * 1000):
        sent += 1
        assert sent < 10_000, "it never fills"
    assert time.monotonic() - began < 1.0
    assert notifier.errors == 1
    for _ in range(sent):
        listening.recv(4096)
    assert notifier.send(ready="1"), "as soon as there is room"
    assert listening.recv(4096) == b"READY=1"
    close(notifier)
