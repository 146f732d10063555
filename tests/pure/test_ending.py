"""One path for every ending: asked for, forced by a fault, or the engine's own (design 8 and 10)."""

import pytest

from pure.start import ANSWERED, BUSY, IDLE, STANDS, Start, draining, gone, kinds, launched, loading, reach, ready
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import REASONS, Cause, CauseClass
from vllm_supervisor.core.exits import NO_RESTART, ExitCode, exit_code
from vllm_supervisor.core.phases import LOADING, SETTLED, Phase
from vllm_supervisor.core.policy import Policy

STOP = ev.StopRequested("SIGTERM")
GRACE = Policy(grace_s=20.0)
LOST = ev.Faulted(Cause("gpu-lost", summary="Xid 79"))


@pytest.mark.parametrize("stand", [stand for stand in STANDS if reach(stand).phase not in SETTLED])
def test_a_stop_ends_whatever_runs(stand):
    start = reach(stand).do(STOP)
    start.wait(150.0, each=lambda start: start.do(ev.Swept()) if start.of(fx.Sweep) else None)
    assert start.phase in SETTLED
    assert start.exit.code == (75 if stand in {"stopping(incident)", "stopping(sweep+)"} else 0)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase in LOADING and phase is not Phase.LAUNCHING])
def test_a_lost_sigterm_is_repeated_and_then_the_engine_is_killed(phase):
    start = loading(phase).do(STOP)
    assert kinds(start) == [fx.NotifyStopping, fx.NotifyExtend, fx.Terminate]
    stopped_at = start.now
    start.wait(60.0)
    assert [at - stopped_at for at, _ in start.of(fx.Terminate)] == pytest.approx([0.0, 5.0], abs=0.01)
    assert start.of(fx.KillEngine)[0][0] - stopped_at == pytest.approx(20.0, abs=0.01)


def test_a_short_patience_kills_without_a_second_sigterm():
    start = loading(Phase.COMPILING, Policy(stop_wait_s=3.0)).do(STOP)
    stopped_at = start.now
    start.wait(40.0)
    assert start.count(fx.Terminate) == 1
    assert start.of(fx.KillEngine)[0][0] - stopped_at == pytest.approx(3.0, abs=0.01)


def test_a_readiness_line_after_a_lost_sigterm_changes_nothing():
    start = loading(Phase.STARTING_SERVER).do(STOP)
    start.do(ANSWERED, ev.Output(()), after=1.0)
    assert start.count(fx.NotifyReady) == 0
    assert gone(start).exit.code == 0


def test_an_engine_being_started_during_a_stop_is_killed():
    start = Start().do(ev.Begin(), ev.PreflightDone(), STOP)
    assert start.fresh[-2:] == (fx.KillEngine(), fx.Sweep())
    assert start.do(ev.Launched(9)).fresh == (fx.KillEngine(),)
    assert start.do(ev.Swept()).exit.code == 0


def test_no_drain_means_sigterm_at_once():
    assert kinds(ready(Policy(drain_s=0.0)).do(STOP)) == [fx.NotifyStopping, fx.NotifyExtend, fx.Terminate]


def test_grace_comes_before_stopping_is_told_and_tells_nothing_that_stretches_the_watchdog():
    start = ready(GRACE).do(BUSY, STOP)
    assert kinds(start) == []
    assert start.phase is Phase.DRAINING
    started = len(start.told)
    start.wait(19.5)
    assert not [effect for _, effect in start.told[started:] if isinstance(effect, fx.NotifyExtend)]
    start.wait(1.0)
    assert [type(effect) for _, effect in start.told[started:]] == [fx.NotifyStopping, fx.NotifyExtend, fx.ReadCounters]


@pytest.mark.parametrize("event", [STOP, ev.EngineExited(0), LOST])
def test_whatever_ends_the_grace_tells_stopping_before_it_extends(event):
    start = ready(GRACE).do(BUSY, STOP).do(event, after=1.0)
    assert kinds(start)[:2] == [fx.NotifyStopping, fx.NotifyExtend]


@pytest.mark.parametrize("stand", ["draining(grace)", "draining", "stopping(term)"])
def test_a_second_signal_kills_now(stand):
    start = reach(stand).do(ev.StopRequested("SIGINT"))
    assert kinds(start)[-2:] == [fx.KillEngine, fx.Sweep]
    assert "SIGINT again: the engine is killed now" in start.logged()
    assert start.do(ev.Swept()).exit.code == 0


def test_a_stop_during_the_incident_lets_it_be_saved_and_a_second_one_does_not():
    start = reach("stopping(incident)").do(STOP)
    assert kinds(start) == []
    assert kinds(start.do(STOP)) == [fx.NotifyExtend, fx.KillEngine, fx.Sweep]
    assert start.do(ev.Swept()).exit.code == 75


def test_a_fault_while_stopping_stays_a_remark():
    start = draining().do(LOST)
    assert kinds(start) == [fx.NotifyExtend, fx.Terminate]
    assert "while stopping: gpu-lost: Xid 79" in start.logged()
    start.do(LOST)
    assert gone(start).exit == fx.Exit(ExitCode.OK, "stopped", "stopped on request (SIGTERM)")


def test_survivors_are_named_and_the_stop_ends_all_the_same():
    start = draining().do(IDLE, ev.EngineExited(0), after=1.0)
    alive = ev.Swept(alive=("pid 77 (VLLM::Worker_TP3)",))
    start.do(alive, after=1.0)
    assert start.fresh == (fx.KillEngine(), fx.Sweep())
    start.wait(40.0, each=lambda start: start.do(alive))
    assert start.exit.code == 0
    assert "a reboot is needed: pid 77 (VLLM::Worker_TP3)" in start.logged()


def test_gpu_memory_that_stays_is_waited_for_and_named():
    start = draining().do(IDLE, ev.EngineExited(0), after=1.0)
    start.wait(40.0, each=lambda start: start.do(ev.Swept(gpu_bytes=70 << 30)))
    assert "a reboot is needed: 70.0 GiB of GPU memory" in start.logged()
    assert start.phase is Phase.STOPPED


def test_a_sweep_that_never_answers_ends_too():
    assert draining().do(IDLE, ev.EngineExited(0), after=1.0).wait(31.0).exit.code == 0


def test_an_incident_that_takes_too_long_is_left():
    start = reach("stopping(incident)").wait(26.0)
    assert start.count(fx.KillEngine) == 1
    assert not start.do(ev.IncidentSaved("late")).fresh


@pytest.mark.parametrize("reason", [reason for reason, kind in REASONS.items() if kind is not CauseClass.NONE])
def test_the_class_of_the_cause_decides_the_exit_code(reason):
    start = launched().do(ev.Faulted(Cause(reason)), ev.IncidentSaved(), ev.Swept())
    expected = {CauseClass.PERMANENT: 78, CauseClass.TRANSIENT: 75, CauseClass.HARDWARE: 69}[REASONS[reason]]
    assert start.exit.code == expected
    assert start.exit.cause.phase == "launching"


def test_the_last_attempt_of_a_row_gives_up():
    for attempt, code in ((4, 75), (5, 76), (6, 76)):
        start = launched(Policy(attempt=attempt)).do(ev.EngineExited(1), ev.IncidentSaved(), ev.Swept())
        assert start.exit.code == code
    assert start.exit.sentence.startswith("gave up after attempt 6 of 5: engine-died")
    permanent = launched(Policy(attempt=5)).do(ev.Faulted(Cause("disk-full")), ev.IncidentSaved(), ev.Swept())
    assert permanent.exit.code == 78


@pytest.mark.parametrize(("status", "words"), [(0, "exit status 0"), (1, "exit status 1"), (-9, "signal 9")])
def test_an_engine_that_ends_unasked_has_failed_whatever_its_code(status, words):
    start = ready().do(ev.EngineExited(status))
    assert start.state.fault.summary == f"the engine ended while it was serving ({words})"
    assert kinds(start) == [fx.NotifyStopping, fx.NotifyExtend, fx.SaveIncident]
    assert start.do(ev.IncidentSaved(), ev.Swept()).exit.code == 75


def test_a_refused_check_ends_without_an_engine():
    start = Start().do(ev.Begin(), ev.PreflightDone(refusal=Cause("model-not-found"), warnings=("ulimit",)))
    assert start.state.warnings == ("ulimit",)
    assert start.do(ev.IncidentSaved()).exit.code == 78
    assert start.count(fx.KillEngine) == 0
    assert start.count(fx.Launch) == 0


def test_the_first_fault_counts_and_the_dead_worker_is_named_before_its_parent():
    start = ready().do(ev.ProcessDied(8, ev.Role.ENGINE_CORE), ev.ProcessDied(9, ev.Role.WORKER), ev.EngineExited(0))
    ended = "the engine ended while it was serving (exit status 0)"
    assert start.state.fault.summary == f"engine-core (pid 8) is gone; {ended}"
    assert start.do(ev.Faulted(Cause("gpu-lost"))).fresh == ()
    assert start.do(ev.IncidentSaved(), ev.Swept()).exit.cause.reason == "engine-died"


def test_a_core_that_is_gone_right_after_its_workers_is_the_cause():
    start = ready().do(ev.ProcessDied(9, ev.Role.WORKER, "VLLM::Worker_TP0"))
    start.do(ev.ProcessDied(8, ev.Role.ENGINE_CORE, "VLLM::EngineCore"), after=0.2).wait(2.0)
    assert start.state.fault.reason == "engine-died"
    assert "VLLM::EngineCore (pid 8)" in start.state.fault.summary


def test_codes_without_a_restart_are_those_of_the_units():
    assert {64, 69, 76, 78, 203, 217, 226} <= NO_RESTART
    assert not {0, 70, 75} & NO_RESTART
    assert exit_code(CauseClass.NONE) is ExitCode.OK
