"""A stop takes the same path in every phase, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from process.daemon_tools import at_most, ended, marked, nothing_left, rows, running, told, until_ready
from process.harness import Daemon
from process.waiting import http_get
from vllm_supervisor.core.ending import NO_FAREWELL

PHASES = (
    "launching",
    "configuring",
    "connecting",
    "loading-weights",
    "compiling",
    "sizing-kv-cache",
    "capturing-graphs",
    "starting-server",
)
TP2 = {"args": {"tensor-parallel-size": 2}}


def test_a_stop_in_every_phase_of_the_load_although_the_first_sigterm_is_lost(tmp_path):
    # All at once, because each one waits five seconds for the second SIGTERM.
    with contextlib.ExitStack() as stack:
        daemons: dict[str, Daemon] = {}
        for phase in PHASES:
            fake = {"pace": 0, "cut_at": phase, "double_fork": True}
            daemons[phase] = stack.enter_context(running(tmp_path / phase, fake, engine=TP2))
        segments: dict[str, list[str]] = {}
        for phase, daemon in daemons.items():
            # A bar's first state has no line end yet, so capturing graphs shows with its second one.
            daemon.wait_phase(phase, *(["sizing-kv-cache"] if phase == "capturing-graphs" else []), timeout=40)
            daemon.wait(lambda daemon=daemon: daemon.control("stats")["cut"], "standstill")
            segments[phase] = daemon.control("stats")["segments"]
            assert marked(daemon)
        assert sum(map(len, segments.values())) >= 3 * 6
        for daemon in daemons.values():
            daemon.sigterm()
        for phase, daemon in daemons.items():
            row = ended(daemon, 0)
            nothing_left(daemon, segments[phase])
            assert (row["outcome"], row["ready_at"]) == ("stopped", None)
            assert told(daemon, "STOPPING") == ["1"]
            assert not told(daemon, "READY")
            assert told(daemon, "STATUS")[-1] == "Stopped (SIGTERM)"


def test_a_stop_while_ready_and_idle_is_quick(tmp_path):
    with running(tmp_path, {"pace": 0, "double_fork": True}, engine=TP2) as daemon:
        until_ready(daemon)
        stats = daemon.control("stats")
        assert Path(f"/proc/{stats['grandchild']}").exists()
        began = daemon.wait(lambda: daemon.status().get("at"), "a status")
        daemon.sigterm()
        row = ended(daemon, 0)
        nothing_left(daemon, stats["segments"])
        assert row["ended_at"] - began < at_most(2.0)


def test_running_requests_finish_before_the_engine_is_told_to_end(tmp_path):
    with running(tmp_path, {"pace": 0, "token_delay": 0.02}, stop={"grace_s": 0.5, "drain_s": 20}) as daemon:
        until_ready(daemon)
        answers = []
        ask = {"model": "kimi", "prompt": "count", "max_tokens": 100, "ignore_eos": True}
        thread = threading.Thread(
            target=lambda: answers.append(http_get(daemon.engine_port, "/v1/completions", post=ask, timeout=20))
        )
        thread.start()
        daemon.wait(lambda: daemon.control("stats")["in_flight"] == 1, "a running request")
        daemon.sigterm()
        daemon.wait(lambda: daemon.get("/readyz").status == 503, "not ready any more")
        assert daemon.status()["phase"] == "draining"
        assert not told(daemon, "STOPPING"), "the grace comes first"
        thread.join(20)
        ended(daemon, 0)
        assert answers[0].status == 200
        assert answers[0].json()["usage"]["completion_tokens"] == 100
        assert [text for text in told(daemon, "STATUS") if text.startswith("Draining (SIGTERM)")]
        # What is asked for until the engine ends grows with the requests that finish.
        assert len(told(daemon, "EXTEND_TIMEOUT_USEC")) >= 4


def test_an_idle_engine_that_drains_itself_is_not_waited_for(tmp_path):
    # As if it waited for its workers: it goes on answering, and would have a minute for that.
    fake = {"pace": 0, "ignore_sigterm": True, "double_fork": True}
    args = {"tensor-parallel-size": 2, "shutdown-timeout": 60}
    with running(tmp_path, fake, engine={"args": args}, stop={"drain_s": 60}) as daemon:
        until_ready(daemon)
        segments = daemon.control("stats")["segments"]
        assert segments
        daemon.sigterm()
        ended(daemon, 0)
        nothing_left(daemon, segments)
        assert NO_FAREWELL in daemon.log()


@pytest.mark.parametrize("when", ["loading", "ready"])
def test_an_engine_that_ignores_sigterm_is_killed(tmp_path, when):
    fake = {"pace": 0, "ignore_sigterm": True, "children_ignore_sigterm": True, "double_fork": True}
    if when == "loading":
        fake["cut_at"] = "compiling"
    with running(tmp_path, fake, engine=TP2, stop={"kill_after_s": 1.0}) as daemon:
        if when == "ready":
            until_ready(daemon)
        else:
            daemon.wait_phase("compiling")
            daemon.wait(lambda: daemon.control("stats")["cut"], "standstill")
        segments = daemon.control("stats")["segments"]
        assert daemon.notify
        daemon.sigterm()
        stopping, _ = daemon.notify.wait_for("STOPPING")
        stopped, _ = daemon.notify.wait_for(lambda pairs: pairs.get("STATUS") == "Stopped (SIGTERM)")
        ended(daemon, 0)
        nothing_left(daemon, segments)
        assert 0.9 < stopped - stopping < at_most(3.0)


def test_a_second_sigterm_kills_at_once(tmp_path):
    with running(tmp_path, {"pace": 0, "cut_at": "compiling", "ignore_sigterm": True}, engine=TP2) as daemon:
        daemon.wait_phase("compiling")
        daemon.wait(lambda: daemon.control("stats")["cut"], "standstill")
        segments = daemon.control("stats")["segments"]
        assert daemon.notify
        daemon.sigterm()
        daemon.notify.wait_for("STOPPING")
        os.kill(daemon.pid, signal.SIGINT)
        ended(daemon, 0, timeout=4.0)
        nothing_left(daemon, segments)
        assert "SIGINT again: the engine is killed now" in daemon.log()


def test_a_stop_before_the_engine_is_started_needs_no_engine(tmp_path):
    # The second start of a row waits; a stop ends the wait.
    env = {"INVOCATION_ID": "0" * 32}
    retry = {"first_wait_s": 60.0}
    with running(tmp_path, {"pace": 0, "exit_at": "configuring"}, env=env, retry=retry) as daemon:
        ended(daemon, 75, "engine-died")
    with running(tmp_path, {"pace": 0}, env=env, retry=retry) as daemon:
        daemon.wait_phase("waiting")
        daemon.sigterm()
        assert daemon.wait_exit(5) == 0
        assert rows(daemon)[-1]["sentence"] == "stopped before the engine was started"
        assert marked(daemon) == []
