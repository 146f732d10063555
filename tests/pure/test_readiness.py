"""READY=1 only when both gates, and the third where it is asked for, are open for the living engine (design 5)."""

import itertools
from dataclasses import replace

import pytest

from pure.start import ANSWERED, LINE, PAUSE, Start, launched, loading, ready, seen
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.events import Probed, ProbeOutcome
from vllm_supervisor.core.facts import CauseFound, StartupComplete
from vllm_supervisor.core.phases import DEFAULT_BUDGETS, Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.step import next_wake

HEALTHY = Probed(ProbeOutcome.HEALTHY)
NO_ANSWER = Probed(ProbeOutcome.NO_ANSWER, full=True, detail="/v1/completions: no answer in time")
REFUSED = Probed(ProbeOutcome.REFUSED, detail="connection refused")
STRANGER = Probed(ProbeOutcome.STRANGER, detail="port 8000 is held by python3 (pid 99, user alice)")
REQUIRE = Policy(smoke="require")
WORKER = ev.ProcessDied(4712, ev.Role.WORKER, "VLLM::Worker_TP1")


def test_the_last_gate_makes_ready_in_the_same_turn():
    start = loading(Phase.VERIFYING).do(ANSWERED)
    kinds = [type(effect) for effect in start.fresh]
    assert kinds[0] is fx.NotifyReady
    assert {fx.RecordReady, fx.ReadCounters, fx.Smoke} < set(kinds)
    assert start.logged().endswith("ready after 1 min 6 s")


def test_the_line_sends_the_real_request_at_once_and_again_twenty_times_a_second():
    start = loading(Phase.STARTING_SERVER).do(LINE)
    assert start.fresh == (fx.Probe(full=True),)
    for _ in range(3):
        start.do(REFUSED)
        assert next_wake(start.state, start.now) == pytest.approx(start.now + 0.05)
        assert not [effect for effect in start.do(ev.Tick()).fresh if isinstance(effect, fx.Probe)]
        assert start.do(ev.Tick(), after=0.05).fresh == (fx.Probe(full=True),)


def test_until_the_line_health_is_asked_once_a_second_and_never_twice_at_a_time():
    start = launched().wait(0.9)
    assert start.count(fx.Probe) == 0
    start.wait(30.0)
    assert [effect for _, effect in start.of(fx.Probe)] == [fx.Probe(full=False)]
    start.wait(10.0, each=lambda start: start.do(REFUSED) if start.state.gates.probing else None)
    assert 9 <= start.count(fx.Probe) <= 11


def test_a_line_while_health_is_asked_goes_on_without_a_pause():
    start = launched().wait(1.1).do(HEALTHY, LINE)
    assert start.count(fx.Probe) == 2
    other = launched().wait(1.1).do(LINE)
    assert other.fresh == ()
    assert other.do(HEALTHY).fresh == (fx.Probe(full=True),)


def test_gates_open_in_either_order():
    start = launched().do(ANSWERED, after=1.0)
    assert start.phase is Phase.VERIFYING
    assert start.do(LINE, after=1.0).phase is Phase.READY


def test_a_line_printed_by_every_api_server_counts_once():
    start = ready().do(LINE, ev.Output((StartupComplete(), StartupComplete())))
    assert start.count(fx.NotifyReady) == 1


def test_an_engine_that_hides_its_line_ends_for_good_within_a_minute():
    start = launched().do(HEALTHY, after=1.0).wait(59.0)
    assert start.phase is Phase.VERIFYING
    start.wait(1.5).do(ev.IncidentSaved(), ev.Swept())
    assert start.state.fault.reason == "readiness-line-hidden"
    assert start.exit.code == 78
    assert start.count(fx.NotifyReady) == 0


def test_a_long_patience_for_the_line_never_reaches_systemds_timeout():
    start = launched(Policy(hidden_line_after_s=3600.0)).do(HEALTHY, after=1.0).wait(125.0)
    assert start.state.fault.reason == "readiness-line-hidden"


def test_an_engine_that_prints_and_never_answers_is_transient():
    start = loading(Phase.VERIFYING)
    assert DEFAULT_BUDGETS[Phase.VERIFYING] == 120.0
    for _ in range(25):
        assert start.phase is Phase.VERIFYING
        start.do(NO_ANSWER, ev.Tick(), after=2.5)
    assert start.state.fault.reason == "not-answering"
    assert start.state.fault.summary.endswith("/v1/completions: no answer in time")
    assert start.do(ev.IncidentSaved(), ev.Swept()).exit.code == 75


def test_a_stranger_counts_when_it_answers_twice_in_a_row():
    start = launched().do(STRANGER, REFUSED, STRANGER, after=1.0)
    assert start.phase is Phase.LAUNCHING
    start.do(STRANGER, after=1.0)
    assert start.state.fault.reason == "stranger-on-port"
    assert "pid 99" in start.state.fault.summary
    assert start.do(ev.IncidentSaved(), ev.Swept()).exit.code == 75


def test_another_model_is_a_configuration_fault():
    start = loading(Phase.VERIFYING).do(Probed(ProbeOutcome.WRONG_MODEL, full=True, detail="lists qwen, not kimi"))
    assert start.do(ev.IncidentSaved(), ev.Swept()).exit.code == 78
    assert "lists qwen, not kimi" in start.exit.sentence


def test_a_503_of_health_is_waited_out():
    start = loading(Phase.VERIFYING).do(Probed(ProbeOutcome.UNHEALTHY, detail="/health says 503"))
    assert start.phase is Phase.VERIFYING
    assert start.do(ANSWERED, after=0.05).phase is Phase.READY


def test_a_worker_that_died_keeps_ready_away_whatever_comes_after():
    start = loading(Phase.VERIFYING).do(WORKER, ANSWERED, LINE, seen(Phase.COMPILING))
    assert start.count(fx.NotifyReady) == 0
    assert start.wait(2.5).state.fault.reason == "worker-killed"
    later = loading(Phase.LOADING_WEIGHTS).do(WORKER, seen(Phase.COMPILING), LINE, after=0.1).wait(2.5)
    assert later.count(fx.NotifyReady) == 0
    assert later.state.fault.reason == "worker-killed"
    assert later.state.fault.phase == "verifying"  # it was printed before the death, and read after it


def test_a_dead_engine_is_not_made_ready_by_a_late_answer():
    start = loading(Phase.VERIFYING).do(ev.EngineExited(0), ANSWERED)
    assert start.count(fx.NotifyReady) == 0
    assert start.state.fault.reason == "engine-died"


def test_last_words_of_a_dying_engine_name_the_cause():
    cause = Cause("gpu-out-of-memory", evidence="torch.OutOfMemoryError")
    start = loading(Phase.LOADING_WEIGHTS).do(WORKER).do(ev.Output((CauseFound(cause),)), after=1.0)
    assert start.phase is Phase.LOADING_WEIGHTS
    assert start.wait(1.5).state.fault.reason == "gpu-out-of-memory"


def test_report_asks_the_question_after_ready_and_goes_on_whatever_the_answer():
    start = ready().do(ev.SmokeDone(passed=False, verdict="the answer was empty"))
    assert start.phase is Phase.READY
    assert start.state.smoke_test == ev.SmokeDone(passed=False, verdict="the answer was empty")
    assert ready(Policy(smoke="off")).count(fx.Smoke) == 0


def test_require_makes_the_answer_a_gate():
    start = loading(Phase.VERIFYING, REQUIRE).do(ANSWERED, after=1.0)
    assert start.fresh == (fx.Smoke(),)
    assert start.count(fx.NotifyReady) == 0
    start.do(ev.Tick(), ev.Tick(), after=1.0)
    start.do(ANSWERED)
    assert start.count(fx.Smoke) == 1
    assert start.do(ev.SmokeDone(passed=True, verdict="right"), after=1.0).phase is Phase.READY
    assert start.count(fx.Smoke) == 1


def test_require_and_a_wrong_answer_fail_the_start():
    start = loading(Phase.VERIFYING, REQUIRE).do(ANSWERED, after=1.0)
    start.do(ev.SmokeDone(passed=False, verdict="garbage"), ev.IncidentSaved(), ev.Swept())
    assert start.exit.cause.reason == "smoke-failed"
    assert start.exit.code == 75


def test_neither_a_stray_answer_nor_a_death_lets_the_third_gate_stand_for_the_others():
    passed = ev.SmokeDone(passed=True, verdict="right")
    early = loading(Phase.VERIFYING, REQUIRE).do(passed)
    assert early.count(fx.NotifyReady) == 0
    assert early.do(ANSWERED).count(fx.NotifyReady) == 1
    dying = loading(Phase.VERIFYING, REQUIRE).do(ANSWERED, WORKER, passed)
    assert dying.count(fx.NotifyReady) == 0


def test_no_engine_no_ready():
    start = Start().do(ev.Begin(), ev.PreflightDone(), LINE, ANSWERED)
    assert start.phase is Phase.VERIFYING
    assert start.count(fx.NotifyReady) == 0


def test_a_question_without_an_answer_is_not_called_an_unanswered_probe():
    start = loading(Phase.VERIFYING, REQUIRE).do(ANSWERED, after=1.0).wait(121.0)
    assert start.state.fault.reason == "smoke-failed"


def test_waiting_for_the_smoke_test_is_no_busy_loop():
    start = loading(Phase.VERIFYING, REQUIRE).do(ANSWERED, after=PAUSE)
    assert next_wake(start.state, start.now) == start.now + 1.0
    dying = loading(Phase.VERIFYING).do(REFUSED, WORKER)
    assert next_wake(dying.state, dying.now) == dying.now + 1.0


def test_a_complaint_of_the_load_is_not_the_cause_of_a_later_death():
    noise = ev.Output((CauseFound(Cause("gpu-busy", evidence="less memory than asked for")),))
    start = loading(Phase.VERIFYING).do(noise, ANSWERED, ev.EngineExited(0), after=1.0)
    assert start.state.fault.reason == "engine-died"
    early = loading(Phase.VERIFYING).do(noise, ev.EngineExited(1), after=1.0)
    assert early.state.fault.reason == "gpu-busy"


def test_the_watchdog_is_fed_from_ready_on_and_never_before():
    start = loading(Phase.VERIFYING, Policy(watchdog_s=30.0)).wait(60.0)
    assert start.count(fx.NotifyWatchdog) == 0
    start.do(ANSWERED).wait(61.0)
    times = [at for at, _ in start.of(fx.NotifyWatchdog)]
    assert len(times) == 6
    assert max(b - a for a, b in itertools.pairwise(times)) <= 11.0
    last = ready(Policy(watchdog_s=3.0)).do(ev.EngineExited(0), ev.IncidentSaved(), ev.Swept(), after=PAUSE)
    assert isinstance(last.fresh[-1], fx.Exit)
    assert ready(replace(Policy(), watchdog_s=None)).wait(60.0).count(fx.NotifyWatchdog) == 0


@pytest.mark.parametrize(("phase", "reason"), [("serving", "worker-killed"), ("loading-weights", "engine-died")])
def test_what_was_printed_after_http_was_up_still_counts_when_ready_comes_late(phase, reason):
    found = CauseFound(Cause("worker-killed", evidence="Worker proc VllmWorker-0 died", phase=phase))
    start = loading(Phase.VERIFYING).do(ev.Output((found,)), ANSWERED)
    assert start.phase is Phase.READY
    assert start.do(ev.EngineExited(0)).state.fault.reason == reason
