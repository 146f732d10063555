"""What an operation does next, from its record alone: in order, after failures, after interruptions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.core.operations import changed, expected_outage, steps_of, unit_of
from vllm_supervisor.core.steps import MAX_TRIES, MEANINGS, Finish, Note, Outcome, Record, Take, decide

SNAPSHOT = steps_of("snapshot", {"stop": True})
UPGRADE = steps_of("upgrade", {})
RESTART = steps_of("restart", {})


def drive(steps, fails=(), interrupts=None):
    """Takes every step as told; the names of those taken, and the end."""
    records, taken, left = [], [], dict(interrupts or {})
    for _ in range(200):
        turn = decide(steps, records)
        if isinstance(turn, Finish):
            return taken, turn, records
        if isinstance(turn, Note):
            records.append(Record(turn.step.name, turn.state, turn.text))
            continue
        name = turn.step.name
        taken.append(name)
        records.append(Record(name, "begun"))
        if left.get(name, 0):
            left[name] -= 1
            continue
        records.append(Record(name, "failed", "why") if name in fails else Record(name, "done"))
    raise AssertionError("it never ends")


def test_all_steps_in_order():
    taken, end, _ = drive(SNAPSHOT)
    assert taken == ["check", "ahead", "stop", "gpus", "sync", "manifest", "command", "start", "wait", "smoke"]
    assert end.code is Outcome.DONE


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("stop", Outcome.STOP_FAILED),
        ("gpus", Outcome.GPUS_HELD),
        ("sync", Outcome.SYNC_FAILED),
        ("manifest", Outcome.MANIFEST_FAILED),
        ("command", Outcome.COMMAND_FAILED),
        ("smoke", Outcome.SMOKE_WRONG),
    ],
)
def test_whatever_fails_after_the_stop_the_service_is_brought_back(step, code):
    taken, end, _ = drive(SNAPSHOT, fails={step})
    assert taken[-3:] == ["start", "wait", "smoke"]
    assert end == Finish(code, f"{step} failed: why")


@pytest.mark.parametrize(("steps", "outage"), [(RESTART, "restart"), (UPGRADE, "switch"), (SNAPSHOT, "stop")])
def test_the_weights_are_read_while_the_old_engine_still_serves(steps, outage):
    taken, _, _ = drive(steps)
    assert taken.index("check") < taken.index("ahead") < taken.index(outage)


def test_a_refusal_before_the_stop_touches_nothing():
    taken, end, records = drive(SNAPSHOT, fails={"check"})
    assert taken == ["check"]
    assert end.code is Outcome.REFUSED
    assert {record.state for record in records if record.step in {"stop", "start", "smoke"}} == {"skipped"}


def test_a_service_that_is_down_outranks_what_led_to_it():
    _, end, _ = drive(SNAPSHOT, fails={"command", "wait"})
    assert end == Finish(Outcome.DOWN, "wait failed: why; command failed: why")


def test_an_interrupted_step_is_taken_again_and_a_command_is_not():
    taken, end, _ = drive(SNAPSHOT, interrupts={"stop": 1, "wait": 2})
    assert (taken.count("stop"), taken.count("wait"), end.code) == (2, 3, Outcome.DONE)
    taken, end, _ = drive(SNAPSHOT, interrupts={"command": 1})
    assert taken.count("command") == 1
    assert end == Finish(Outcome.COMMAND_FAILED, "command failed: it was interrupted")


def test_a_step_that_is_always_interrupted_is_given_up():
    taken, end, _ = drive(RESTART, interrupts={"wait": 99})
    assert taken.count("wait") == MAX_TRIES
    assert end.code is Outcome.DOWN


@pytest.mark.parametrize("step", ["restart", "wait", "smoke"])
def test_an_upgrade_that_fails_goes_back(step):
    taken, end, _ = drive(UPGRADE, fails={step})
    assert taken[-4:] == ["back", "back-restart", "back-wait", "back-smoke"]
    assert end == Finish(Outcome.ROLLED_BACK, f"{step} failed: why")


@pytest.mark.parametrize("step", ["install", "check"])
def test_an_upgrade_that_fails_before_the_switch_touches_nothing(step):
    taken, end, _ = drive(UPGRADE, fails={step})
    assert taken[-1] == step
    assert end.code in {Outcome.PREPARE_FAILED, Outcome.REFUSED}


def test_an_upgrade_that_cannot_go_back_is_down():
    assert drive(UPGRADE, fails={"wait", "back-wait"})[1].code is Outcome.DOWN


@given(
    st.sampled_from([SNAPSHOT, UPGRADE, RESTART]),
    st.sets(st.sampled_from(sorted({step.name for step in (*SNAPSHOT, *UPGRADE)}))),
    st.dictionaries(st.sampled_from(sorted({step.name for step in (*SNAPSHOT, *UPGRADE)})), st.integers(0, 9)),
)
def test_it_always_ends_and_brings_back_what_it_stopped(steps, fails, interrupts):
    taken, end, records = drive(steps, fails, interrupts)
    assert end.code in MEANINGS
    assert (end.code is Outcome.DONE) == all(record.state != "failed" for record in records)
    if steps is SNAPSHOT and "stop" in taken:
        assert {"start", "wait", "smoke"} <= set(taken)


def test_a_resumed_step_knows_it():
    turn = decide(RESTART, [Record("check", "begun")])
    assert isinstance(turn, Take)
    assert turn.again


def test_the_outage_comes_from_the_history():
    rows = [{"began_at": 0.0, "ready_at": took} for took in (500.0, 523.0, 610.0)]
    told = expected_outage([{"began_at": 0.0, "ready_at": None}, *rows], 30.0)
    assert told.startswith("about 8 min 43 s (by the last 3 starts; the longest took 10 min 10 s)")
    assert "up to 30 s for running requests" in told
    assert "not known" in expected_outage([], 30.0)


def test_the_unit_of_an_instance():
    own = {"LoadState": "loaded", "ExecStart": "{ path=x ; argv[]=x run --config /etc/vllm-supervisor/kimi.toml ; }"}
    assert unit_of("kimi", own) == "kimi.service"
    assert unit_of("qwen", {"LoadState": "not-found", "ExecStart": ""}) == "vllm@qwen.service"
    assert unit_of("ssh", {"LoadState": "loaded", "ExecStart": "sshd"}) == "vllm@ssh.service"


def test_new_figures_alone_are_no_news():
    assert changed("shard 3 of 9", ["starting"])
    assert not changed("shard 3 of 9", ["shard 2 of 9"])
