"""READY=1 is sent when the line was read and an answer came, both from our engine, and never otherwise."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from process.daemon_tools import at_most, ended, nothing_left, rows, running, stranger, told, until_ready

PHASES = (
    "configuring",
    "connecting",
    "loading-weights",
    "compiling",
    "sizing-kv-cache",
    "capturing-graphs",
    "starting-server",
)
SOON = {"readiness": {"hidden_line_after_s": 1.0}, "stall": {"verifying": 1.0}}


def test_ready_follows_the_line_and_an_answer_and_every_step_is_told(tmp_path):
    env = {"WATCHDOG_USEC": "1500000", "LISTEN_FDS": "0", "LISTEN_PID": "1", "LISTEN_FDNAMES": "x"}
    with running(tmp_path, {"pace": "manual"}, env=env, engine={"args": {"tensor-parallel-size": 2}}) as daemon:
        for phase in PHASES[:-1]:
            daemon.control("advance", to=phase)
            # The last line of a phase can be the first one of the next.
            daemon.wait_phase(phase, PHASES[PHASES.index(phase) + 1])
        daemon.control("advance", to="starting-server")
        daemon.wait_phase("starting-server")
        assert not told(daemon, "READY")
        assert not told(daemon, "WATCHDOG"), "it would arm the watchdog of a start"
        reply = daemon.get("/readyz")
        assert reply.status == 503
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert reply.json()["phase"] == "starting-server"
        assert daemon.get("/healthz").status == 200

        daemon.control("finish")
        until_ready(daemon)
        reply = daemon.get("/readyz")
        assert (reply.status, reply.json()["ready"]) == (200, True)
        assert daemon.notify
        daemon.notify.wait_for("WATCHDOG", 5)

        stats = daemon.control("stats")
        for pid in (stats["pid"], stats["core"], *stats["workers"]):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            names = {entry.partition(b"=")[0].decode() for entry in environment}
            assert "VSUP_START_ID" in names
            assert not [name for name in names if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]

        daemon.sigterm()
        ended(daemon, 0)
        nothing_left(daemon, stats["segments"])

    assert set(daemon.notify.pids) == {daemon.pid}, "NotifyAccess=main hears nobody else"
    assert told(daemon, "READY") == ["1"]
    assert told(daemon, "STOPPING") == ["1"]
    keys = [key for _, pairs in daemon.notify.messages for key in pairs]
    between = keys[keys.index("READY") : keys.index("STOPPING")]
    assert "EXTEND_TIMEOUT_USEC" not in between, "it would stretch the watchdog"
    sentences = dict.fromkeys(told(daemon, "STATUS"))
    assert len(sentences) >= 8
    assert all(re.fullmatch(r"[ -~]+", sentence) for sentence in sentences)
    (row,) = rows(daemon)
    assert row["outcome"] == "stopped"
    assert row["began_at"] < row["ready_at"] < row["ended_at"]
    assert '"loading-weights"' in row["phases"]
    assert '"kv_cache_tokens": 252736' in row["figures"]


@pytest.mark.parametrize(
    ("fake", "code", "reason", "words"),
    [
        ({"generate_hangs": True}, 75, "not-answering", "no request was answered"),
        ({"generate_status": 500}, 75, "not-answering", "/v1/completions says 500"),
        ({"health_status": 503}, 75, "not-answering", "503"),
        ({"hang_health": True}, 75, "not-answering", "no request was answered"),
        ({"readiness_without_http": True}, 75, "not-answering", "connection refused"),
        ({"no_readiness_line": True}, 78, "readiness-line-hidden", "never printed 'Application startup complete'"),
        ({"die_between_line_and_answer": True}, 75, "engine-died", "the engine ended in verifying (exit status 1)"),
        ({"served_model": "other"}, 78, "configuration-invalid", "lists other, not kimi"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_one_gate_is_not_enough(tmp_path, fake, code, reason, words):
    with running(tmp_path, {"pace": 0, **fake}, **SOON) as daemon:
        row = ended(daemon, code, reason)
        assert words in row["sentence"]
        assert row["ready_at"] is None
        assert not told(daemon, "READY")
        assert told(daemon, "STATUS")[-1].startswith(f"Failed: {reason}")


def test_a_stranger_on_the_port_is_named_and_never_believed(tmp_path):
    # It comes after the check, while the engine loads: a port that is held before is refused by the check.
    with running(tmp_path, {"pace": "manual", "listen_elsewhere": 0}) as daemon:
        daemon.wait_phase("launching", "configuring")
        with stranger(daemon.engine_port):
            daemon.control("finish")
            row = ended(daemon, 75, "stranger-on-port")
            assert f"port {daemon.engine_port} is held by another process: pid {os.getpid()}" in row["sentence"]
        assert not told(daemon, "READY")


def test_a_first_answer_that_takes_long_is_waited_for(tmp_path):
    # On the real engine the first request compiles kernels: 16 s after the line and /health.
    fake = {"pace": 0, "first_generate_delay": 2.0}
    with running(tmp_path, fake, stall={"verifying": 10.0}) as daemon:
        ready = until_ready(daemon)
        assert daemon.notify
        at, _ = daemon.notify.wait_for(lambda pairs: "Waiting for the first answer" in pairs.get("STATUS", ""))
        assert 1.9 < ready - at < at_most(4.0)
