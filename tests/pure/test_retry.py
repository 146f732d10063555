"""The row of failures, the growing wait, and what successful starts teach (design 6 and 8)."""

import pytest

from vllm_supervisor.core.phases import DEFAULT_BUDGETS, Phase
from vllm_supervisor.core.retry import (
    CUT_OFF_S,
    SERVED_S,
    PastStart,
    Row,
    learnt_budgets,
    row_of_failures,
    usual_phases,
    wait_before,
)

BOOT = "boot-7"
NOW = 1_000_000.0


def failed(end, *, lasted=60.0, code=75, ready=None, boot=BOOT, **more):
    """A start that ended `end` seconds before now; `ready` seconds before its end it became ready."""
    ended_at = NOW - end
    return PastStart(
        began_at=ended_at - lasted,
        ended_at=ended_at,
        boot_id=boot,
        ready_at=None if ready is None else ended_at - ready,
        outcome="failed",
        exit_code=code,
        reason=more.pop("reason", "nccl-error"),
        **more,
    )


def cut_off(began, *, ready=None, boot=BOOT):
    return PastStart(NOW - began, None, boot, None if ready is None else NOW - ready, "ready" if ready else "")


def row(*past):
    return row_of_failures(past, NOW, BOOT).failures


def chain(count, **more):
    """Failures one after the other, the last one a second ago."""
    return [failed(1.0 + 61.0 * index, **more) for index in reversed(range(count))]


def test_no_history_is_no_row():
    assert row_of_failures([], NOW, BOOT) == Row(0, "")


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_failures_that_systemd_answered_make_a_row(count):
    assert row(*chain(count)) == count


def test_the_last_reason_is_told():
    past = [failed(100.0, reason="gpu-busy"), failed(1.0, reason="nccl-error")]
    assert row_of_failures(past, NOW, BOOT).last_reason == "nccl-error"
    told = [failed(1.0, sentence="nccl-error: ring broke. Try again.")]
    assert row_of_failures(told, NOW, BOOT).last_reason == "nccl-error: ring broke. Try again."
    assert row_of_failures([cut_off(30.0)], NOW, BOOT).last_reason == "it ended without a word"


@pytest.mark.parametrize("code", [0, 64, 69, 76, 78])
def test_an_end_that_systemd_does_not_answer_ends_the_row(code):
    outcome = PastStart(NOW - 200.0, NOW - 63.0, BOOT, None, "stopped" if code == 0 else "failed", code)
    assert row(*chain(2), outcome) == 0
    assert row(failed(400.0), outcome, failed(1.0)) == 1


def test_a_bug_of_ours_is_part_of_the_row():
    assert row(failed(62.0, code=70), failed(1.0)) == 2


def test_a_long_pause_means_a_person():
    assert row(failed(3600.0)) == 0
    assert row(failed(3600.0), failed(1.0)) == 1


def test_the_growing_wait_is_inside_a_start_and_so_no_pause():
    assert row(failed(662.0), failed(1.0, lasted=660.0)) == 2


def test_a_reboot_ends_the_row():
    assert row(*chain(3, boot="boot-6")) == 0
    assert row(failed(62.0, boot="boot-6"), failed(1.0)) == 1


def test_a_start_that_served_begins_a_row_of_its_own():
    served = failed(1.0, lasted=SERVED_S + 900.0, ready=SERVED_S + 1.0, reason="engine-hung")
    before = [failed(SERVED_S + 903.0 + 61.0 * index) for index in reversed(range(4))]
    assert row(*before, served) == 1
    later = [failed(62.0, lasted=SERVED_S + 900.0, ready=SERVED_S + 1.0), failed(1.0)]
    assert row(failed(SERVED_S + 1000.0), *later) == 2


def test_a_start_that_dies_soon_after_ready_continues_the_row():
    assert row(*chain(4, ready=20.0)) == 4


def test_a_start_that_was_cut_off_counts_and_its_end_is_not_known():
    assert row(cut_off(600.0)) == 1
    assert row(failed(601.0), cut_off(600.0)) == 2
    assert row(cut_off(CUT_OFF_S + 10.0)) == 0


def test_a_start_cut_off_while_it_served_begins_a_row():
    assert row(failed(864_001.0), cut_off(864_000.0, ready=863_000.0)) == 1


def test_a_start_that_was_cut_off_while_stopping_was_stopped():
    assert row(PastStart(NOW - 60.0, None, BOOT, None, "stopped")) == 0


def test_the_wait_doubles_up_to_its_longest():
    assert [wait_before(count, 10.0, 600.0) for count in range(9)] == [0, 10, 20, 40, 80, 160, 320, 600, 600]
    assert wait_before(10_000, 10.0, 600.0) == 600.0
    assert wait_before(3, 0.0, 600.0) == 0.0


def success(seconds, gap, config="a"):
    phases = {Phase.LOADING_WEIGHTS: seconds, Phase.COMPILING: 2 * seconds}
    return PastStart(0.0, ready_at=1.0, config_hash=config, phases=phases, gaps={Phase.LOADING_WEIGHTS: gap})


def test_usual_lengths_are_medians_of_the_last_five_of_this_configuration():
    past = [success(999.0, 1.0), *(success(float(value), 1.0) for value in (10, 20, 30, 40, 50))]
    past.append(success(7.0, 1.0, config="b"))
    past.append(failed(1.0, phases={Phase.LOADING_WEIGHTS: 5.0}))
    assert usual_phases(past, "a") == {Phase.LOADING_WEIGHTS: 30.0, Phase.COMPILING: 60.0}
    assert usual_phases(past[1:3], "a")[Phase.LOADING_WEIGHTS] == 15.0
    assert usual_phases(past, "never seen")[Phase.LOADING_WEIGHTS] == 30.0
    assert usual_phases([], "a") == {}


def test_budgets_are_learnt_from_the_longest_gap():
    learnt = learnt_budgets([success(10.0, 30.0), success(10.0, 70.0), success(10.0, 20.0)], "a")
    assert learnt[Phase.LOADING_WEIGHTS] == 210.0
    assert learnt[Phase.COMPILING] == DEFAULT_BUDGETS[Phase.COMPILING]
    assert set(learnt) == set(DEFAULT_BUDGETS)
    assert learnt_budgets([], "a") == DEFAULT_BUDGETS
