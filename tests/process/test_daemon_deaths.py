"""The death of any engine process ends the start with 75, whatever the engine's own exit code, and leaves nothing."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from process.daemon_tools import at_most, ended, incident, nothing_left, running, told, until_ready

TP2 = {"args": {"tensor-parallel-size": 2}}


@pytest.mark.parametrize(("who", "reason"), [("w1", "worker-killed"), ("core", "engine-died")])
def test_a_death_while_serving_is_noticed_within_a_second(tmp_path, who, reason):
    # The real engine needs five seconds to end; it says 200 to /health meanwhile.
    fake = {"pace": 0, "death_poll_s": 5.0}
    with running(tmp_path, fake, engine=TP2) as daemon:
        until_ready(daemon)
        stats = daemon.control("stats")
        pid = stats["core"] if who == "core" else stats["workers"][1]
        daemon.wait(lambda: str(pid) in daemon.status()["engine"]["processes"], "a look at the processes")
        killed = time.monotonic()
        daemon.control("die", who=who)
        daemon.wait(lambda: f"(pid {pid}) died" in daemon.log(), "a word about the death")
        assert time.monotonic() - killed < at_most(1.0)
        assert daemon.notify
        at, _ = daemon.notify.wait_for(lambda pairs: pairs.get("STATUS", "").startswith("Degraded: VLLM::"))
        assert at - killed < at_most(1.0)
        row = ended(daemon, 75, reason)
        nothing_left(daemon, stats["segments"])
        assert row["ready_at"]
        assert incident(daemon)["cause"]["reason"] == reason
        assert "Worker proc" in next((daemon.state / "incidents").glob("*/output.log")).read_text() or who == "core"


def test_the_api_server_killed_leaves_no_orphans(tmp_path):
    # SIGKILL of the API server orphans engine core and workers for good.
    with running(tmp_path, {"pace": 0, "double_fork": True, "children_ignore_sigterm": True}, engine=TP2) as daemon:
        until_ready(daemon)
        stats = daemon.control("stats")
        killed = time.monotonic()
        daemon.control("die", who="main")
        row = ended(daemon, 75, "engine-died")
        nothing_left(daemon, stats["segments"])
        assert "the engine ended while it was serving (signal 9)" in row["sentence"]
        assert time.monotonic() - killed < at_most(5.0)
        assert not Path(f"/proc/{stats['grandchild']}").exists()


def test_an_engine_that_exits_0_unasked_has_failed(tmp_path):
    with running(tmp_path, {"pace": 0, "exit_zero_unasked": True, "exit_after": 600}) as daemon:
        until_ready(daemon)
        daemon.control("exit", code=0)
        row = ended(daemon, 75, "engine-died")
        assert "the engine ended while it was serving (exit status 0)" in row["sentence"]
        assert re.match(r"Failed: engine-died", told(daemon, "STATUS")[-1])
        assert told(daemon, "STOPPING") == ["1"]


@pytest.mark.parametrize(
    ("fake", "reason", "phase"),
    [
        ({"worker_dies_at": "loading-weights"}, "worker-killed", "connecting"),
        ({"exit_at": "launching", "exit_after": 0.05, "exit_code": 3}, "engine-died", "launching"),
        ({"exit_at": "compiling", "exit_after": 0.05, "exit_code": -11}, "engine-died", "compiling"),
        ({"exit_at": "connecting", "exit_after": 0.05, "exit_code": 0}, "engine-died", "connecting"),
    ],
    ids=["worker-killed", "exit-3", "sigsegv", "exit-0"],
)
def test_a_death_while_loading_names_the_phase(tmp_path, fake, reason, phase):
    with running(tmp_path, {"pace": 1.5, **fake}, engine=TP2) as daemon:
        row = ended(daemon, 75, reason)
        assert not told(daemon, "READY")
        assert incident(daemon)["cause"]["phase"] == phase
        if reason == "engine-died":
            how = "signal 11" if fake["exit_code"] < 0 else f"exit status {fake['exit_code']}"
            assert f"the engine ended in {phase} ({how})" in row["sentence"]
