"""`smoke` on the command line and after every READY: its figures beside those of the history."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from process.daemon_tools import rows, running, until_ready, verb
from vllm_supervisor.daemon.instance import read_instance
from vllm_supervisor.daemon.smoke import asked_of

pytestmark = pytest.mark.timeout(180)
REPORT = {"smoke": {"on_start": "report"}, "engine": {"args": {"reasoning-parser": "deepseek_r1"}}}


def asked(daemon):
    """What the status says of the test after READY."""
    until_ready(daemon)
    return daemon.wait(lambda: daemon.status().get("smoke"), "the smoke test")


def smoke(daemon, *words):
    return verb(
        "smoke", str(daemon.config), "--state-dir", str(daemon.state), "--runtime-dir", str(daemon.runtime), *words
    )


def test_after_every_ready_the_figures_are_kept_and_slow_is_judged_by_the_last_ones(tmp_path):
    with running(tmp_path, {"pace": 0}, **REPORT) as daemon:
        shown = asked(daemon)
        (kept,) = (json.loads(row["smoke"]) for row in rows(daemon))
        assert (kept["passed"], kept["verdict"]) == (True, "right: 'The capital of France is Paris.'")
        first = kept["first_token_s"]
        assert shown["pace"] == f"first token after {first:.2f} s, {kept['tokens_per_s']:.1f} tokens/s"
        assert f"; {shown['pace']}" in daemon.log()
        daemon.sigterm()
        assert daemon.wait_exit() == 0

    # Three starts of a much faster engine: beside them this one is slow, though right.
    instance = read_instance(daemon.config)
    fast = {"passed": True, "first_token_s": 0.25, "tokens_per_s": 1e9, "asked": asked_of(instance.settings)}
    with contextlib.closing(sqlite3.connect(daemon.state / "history.sqlite")) as db, db:
        for _ in range(3):
            db.execute(
                "INSERT INTO starts (began_at, boot_id, config_hash, version, smoke) VALUES (1, '', '', '', ?)",
                (json.dumps(fast),),
            )
    with running(tmp_path, {"pace": 0}, **REPORT) as daemon:
        shown = asked(daemon)
        assert shown["passed"] is True
        assert shown["verdict"].startswith("slow: ")
        assert "tokens/s, usually 1000000000.0; right: 'The" in shown["verdict"]
        assert (
            f"first token after {json.loads(rows(daemon)[-1]['smoke'])['first_token_s']:.2f} s (before: {first:.2f}, 0.25, 0.25, 0.25 s)"
            in shown["pace"]
        )
        assert "\nspeed      first token after " in verb_status(daemon)
        daemon.wait(lambda: daemon.status()["requests"].get("running") == 0, "the engine is idle")
        done = smoke(daemon)
        assert (done.returncode, done.stderr) == (2, "")
        lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        assert lines["verdict"].startswith("slow: ")
        assert "tokens/s (before: " in lines["speed"]
        assert "1000000000.0" in lines["speed"]
        other = smoke(daemon, "--question", "The capital of France?", "--json")
        assert other.returncode == 0, "nothing to compare another question with"
        assert json.loads(other.stdout)["last"] == []


def verb_status(daemon):
    return verb(
        "status", str(daemon.config), "--state-dir", str(daemon.state), "--runtime-dir", str(daemon.runtime)
    ).stdout


def test_other_requests_excuse_a_slow_answer_and_every_question_is_shown(tmp_path):
    questions = {"on_start": "off", "questions": [{"question": "What is 2 + 2?", "expect": "4"}]}
    with running(tmp_path, {"pace": 0, "busy": {"running": 3, "tokens_per_s": 100.0}}, smoke=questions) as daemon:
        until_ready(daemon)
        daemon.wait(lambda: daemon.status()["requests"].get("running"), "the requests are counted")
        done = smoke(daemon)
        assert done.returncode == 1
        assert done.stdout.count("question   ") == 2
        assert "\njudged     right\n" in done.stdout
        assert "\nverdict    question 2 of 2: '4' is not in the answer" in done.stdout
        assert done.stdout.endswith("           not compared: 3 other requests run\n")
        assert smoke(daemon, "--question", "The capital of France?").returncode == 0, "one question replaces all"
