"""An address that cannot be bound is a wrong configuration: `check` says so, and a start does not try again."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from process.daemon_tools import ended, running
from process.harness import write_config
from process.verbs import verb
from vllm_supervisor.adapters import binding

NO_ADDRESSES = ["203.0.113.7", "2001:db8::7", "no such name", "a..b", "[127.0.0.1]"]
"""Documentation's own networks (RFC 5737, RFC 3849), and what is no name at all."""
ADDRESSES = ["127.0.0.1", "127.8.8.8", "0.0.0.0", "localhost"]


@pytest.mark.parametrize("host", NO_ADDRESSES)
def test_what_cannot_be_bound_is_told_why(host, monkeypatch):
    monkeypatch.setattr(binding, "RESOLVE_S", 100.0)
    assert binding.unbindable(host).startswith(("it is no address", "this machine has no IPv6"))


@pytest.mark.parametrize("host", ADDRESSES)
def test_what_can_be_bound_is_nothing_to_tell(host):
    assert binding.unbindable(host) == ""


def test_a_taken_port_does_not_make_the_address_wrong():
    with socket.create_server(("127.0.0.1", 0)):
        assert binding.unbindable("127.0.0.1") == ""


def test_a_resolver_that_does_not_answer_holds_nobody_up(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(binding, "RESOLVE_S", 0.01)
    monkeypatch.setattr(binding, "_try", lambda _: "late" if answers.wait(30) else "")
    assert binding.unbindable("slow.example") == ""
    answers.set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_low_port_needs_a_right():
    low = binding.first_free_port() - 1
    if low < 1:
        pytest.skip("every port is free for everybody here")
    assert binding.may_bind(low)
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setuid(65534)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", low))
            except PermissionError:
                os._exit(0 if not binding.may_bind(low) and binding.may_bind(low + 1) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("host", ["203.0.113.7", "a..b"])
def test_check_refuses_an_address_that_is_not_here(tmp_path, host):
    config = write_config(tmp_path, {}, engine={"host": host})
    done = verb("check", config)
    assert done.code == 78, done
    assert f"refuse  host: engine.host {host} cannot be bound: it is no address" in done.out
    assert "set engine.host to an address of this machine" in done.out


def test_a_metrics_address_that_is_not_here_is_a_warning(tmp_path):
    done = verb("check", write_config(tmp_path, {}, metrics={"listen": "203.0.113.7:9477"}))
    assert "warn    metrics-port: the metrics address 203.0.113.7:9477 cannot be bound" in done.out
    assert done.code == 0, done


def test_a_start_with_an_address_that_is_not_here_is_not_repeated(tmp_path):
    with running(tmp_path, {"pace": 0}, engine={"host": "203.0.113.7"}) as daemon:
        ended(daemon, 78, "configuration-invalid")
        assert "engine.host 203.0.113.7 cannot be bound" in daemon.log()
        assert "engine started" not in daemon.log()
