"""`status`, `wait`, `smoke` and `history` beside a real daemon, after its end, and without any."""

from __future__ import annotations

import json

import pytest

from process.harness import Daemon, write_config
from process.verbs import on_terminal, verb

READY = {"pace": 0.2, "reasoning": "That is Paris."}


def places(daemon):
    return ("--state-dir", daemon.state, "--runtime-dir", daemon.runtime)


@pytest.fixture
def ready(tmp_path):
    """A daemon whose fake engine is ready, with thoughts and answer told apart."""
    config = write_config(tmp_path, READY, engine={"args": {"reasoning-parser": "deepseek_r1"}})
    with Daemon(config, tmp_path) as daemon:
        daemon.wait_phase("ready")
        yield daemon


def test_a_ready_instance(ready):
    done = verb("status", ready.config, *places(ready))
    assert done.code == 0
    assert done.out.startswith("fake: ready\n")
    assert "\x1b" not in done.out
    assert done.err == ""
    assert json.loads(verb("status", ready.config, *places(ready), "--json").out)["phase"] == "ready"
    assert verb("wait", ready.config, *places(ready), "--timeout", "5").code == 0
    listed = verb("history", ready.config, *places(ready))
    assert listed.out.splitlines()[1].split()[2] == "ready"


def test_a_terminal_gets_colours_unless_they_are_not_wanted(ready):
    code, painted = on_terminal("status", ready.config, *places(ready))
    assert code == 0
    assert "\x1b[1;32mready" in painted
    code, painted = on_terminal("status", ready.config, *places(ready), NO_COLOR="1")
    assert "ready" in painted
    assert "\x1b[1;32m" not in painted


def test_a_question_with_reasoning_and_content_apart(ready):
    done = verb("smoke", ready.config)
    assert done.code == 0, done
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert lines["reasoning"] == "That is Paris."
    assert lines["content"] == "The capital of France is Paris."
    assert lines["verdict"] == "right"
    assert lines["took"].endswith(" s, 13 tokens")
    assert lines["speed"].startswith("first token after ")
    assert "tokens/s" in lines["speed"]
    wrong = verb("smoke", ready.config, "--expect", "Rome", "--json")
    assert wrong.code == 1
    assert json.loads(wrong.out)["verdict"] == "wrong"


def test_an_instance_that_loads(tmp_path):
    config = write_config(tmp_path, {"pace": "manual"})
    with Daemon(config, tmp_path) as daemon:
        daemon.wait_phase("launching")
        done = verb("status", config, *places(daemon))
        assert done.code == 3
        assert done.out.startswith("fake: launching, not ready\n")
        late = verb("wait", config, *places(daemon), "--timeout", "0.5")
        assert late.code == 124
        assert "fake is not ready after" in late.err
        assert "fake: launching: " in late.err
        refused = verb("smoke", config)
        assert refused.code == 1
        assert "gave no answer: /v1/chat/completions: nobody takes a connection there" in refused.err


def test_a_start_that_fails_for_good_is_told_while_it_is_waited_for(tmp_path):
    config = write_config(tmp_path, {"exit_at": "loading-weights", "pace": 2.0, "exit_code": 1})
    with Daemon(config, tmp_path) as daemon:
        daemon.wait_phase("launching", "configuring", "connecting", "loading-weights")
        done = verb("wait", config, *places(daemon), "--timeout", "25", "--quiet")
        daemon.wait_exit()
        assert done.code == 75
        assert "fake does not run; its last start: " in done.err
        dead = verb("status", config, *places(daemon))
        assert dead.code == 3
        assert dead.out.startswith("fake: not running\n")
        assert "outcome    failed (exit" in dead.out
        assert "cause      " in dead.out
        body = json.loads(verb("status", config, *places(daemon), "--json").out)
        assert (body["running"], body["ready"]) == (False, False)
        assert body["last"]["outcome"] == "failed"
        line = verb("history", config, *places(daemon)).out.splitlines()[1]
        assert line.split()[2] == "failed"
        rows = [json.loads(line) for line in verb("history", config, *places(daemon), "--json").out.splitlines()]
        assert rows[0]["reason"] == body["last"]["reason"] != ""


@pytest.mark.parametrize("name", ["status", "wait", "history", "smoke"])
def test_an_unknown_instance_is_one_sentence(tmp_path, name):
    done = verb(name, "no-such-instance", HOME=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path))
    assert done.code == 64
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "there is no instance 'no-such-instance'" in done.err


def test_an_instance_that_was_never_started(tmp_path):
    config = write_config(tmp_path)
    where = ("--state-dir", tmp_path / "state", "--runtime-dir", tmp_path / "run")
    done = verb("status", config, *where)
    assert (done.code, done.out) == (3, "fake: not running, never started\n")
    listed = verb("history", config, *where)
    assert (listed.code, listed.out, listed.err) == (0, "", "fake was never started\n")


def test_a_history_that_is_no_history_is_one_sentence(tmp_path):
    config = write_config(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "history.sqlite").write_bytes(b"\x00not a database" * 100)
    done = verb("history", config, "--state-dir", tmp_path / "state", "--runtime-dir", tmp_path / "run")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "cannot be read" in done.err


def test_wrong_numbers_are_refused(tmp_path):
    config = write_config(tmp_path)
    assert verb("wait", config, "--timeout", "-1").code == 64
    assert verb("history", config, "--last", "0").code == 64
    assert verb("smoke", config, "--max-tokens", "0").code == 64
