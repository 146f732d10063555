"""A drain: what runs is finished, and nothing else is waited for (design 10)."""

from dataclasses import replace

import pytest

from pure.start import BUSY, IDLE, draining, gone, kinds, ready
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import ending
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy

STOP = ev.StopRequested("SIGTERM")
DRAINS = Policy(engine_drains=True, drain_s=30.0)
UNKNOWN = ev.Counted()


def test_draining_waits_for_running_requests_and_then_terminates():
    start = draining()
    assert kinds(start) == [fx.NotifyStopping, fx.NotifyExtend, fx.ReadCounters]
    start.do(BUSY, ev.Tick(), after=5.0)
    assert start.phase is Phase.DRAINING
    start.do(IDLE, after=1.0)
    assert kinds(start) == [fx.NotifyExtend, fx.Terminate]
    assert gone(start).exit.sentence == "stopped on request (SIGTERM)"


def test_a_drain_ends_at_its_time_and_extends_while_requests_finish():
    start, began = draining(), draining().now
    for tokens in range(1, 101):
        start.do(ev.Counted(generation_tokens=float(tokens), running=1.0), ev.Tick(), after=0.5)
    drained_at = start.of(fx.Terminate)[0][0]
    assert 30.0 <= drained_at - began <= 31.0
    told = [at for at, _ in start.of(fx.NotifyExtend) if began < at < drained_at]
    assert 4 <= len(told) <= 6


def test_an_engine_that_drains_itself_is_told_at_once_and_killed_after_its_time():
    start = ready(DRAINS).do(BUSY, STOP)
    assert kinds(start) == [fx.NotifyStopping, fx.NotifyExtend, fx.Terminate]
    began = start.now
    start.do(IDLE, after=1.0)  # its counters stop with its scheduler, its answers may still be on their way
    assert start.phase is Phase.DRAINING
    start.wait(60.0)
    assert start.count(fx.Terminate) == 1
    assert start.of(fx.KillEngine)[0][0] - began == pytest.approx(35.0, abs=0.01)


def test_an_engine_that_drains_itself_is_not_waited_for_when_nobody_is_left():
    start = ready(DRAINS).do(BUSY, STOP)
    start.do(ev.Activity(connections=2), IDLE, after=2.0)
    assert start.phase is Phase.DRAINING
    start.do(ev.Activity(connections=0), IDLE, after=1.0)
    assert kinds(start) == [fx.NotifyExtend, fx.KillEngine, fx.Sweep]
    assert ending.NO_FAREWELL in start.logged()


def test_what_was_seen_before_the_drain_kills_no_engine_that_drains_itself():
    start = ready(DRAINS).do(ev.Activity(connections=0), STOP)
    began = start.now
    start.do(replace(IDLE, at=began + 0.1), after=0.2)
    assert start.phase is Phase.DRAINING, "somebody may have connected since the last look"
    start.do(ev.Activity(connections=0), replace(IDLE, at=began - 0.1), after=2.0)
    assert start.phase is Phase.DRAINING, "a request may have come since the page was asked for"
    start.do(replace(IDLE, at=start.now))
    assert start.phase is Phase.STOPPING


def test_counters_from_before_the_drain_do_not_end_it():
    start = draining()
    start.do(replace(IDLE, at=start.now - 0.5), after=0.1)
    assert start.phase is Phase.DRAINING
    start.do(replace(IDLE, at=start.now))
    assert start.phase is Phase.STOPPING


@pytest.mark.parametrize("policy", [Policy(), DRAINS])
def test_an_engine_that_ends_while_draining_is_swept(policy):
    start = ready(policy).do(BUSY, STOP, after=1.0).do(ev.EngineExited(0), after=3.0)
    assert kinds(start) == [fx.NotifyExtend, fx.KillEngine, fx.Sweep]
    assert start.do(ev.Swept()).exit.code == 0


def test_unreadable_counters_are_not_taken_for_an_idle_engine():
    start = draining().do(ev.Activity(connections=2), UNKNOWN, UNKNOWN, after=1.0)
    assert start.phase is Phase.DRAINING
    start.do(ev.Activity(connections=0), UNKNOWN, after=1.0)
    assert start.phase is Phase.STOPPING


def test_connections_counted_before_the_drain_say_nothing_about_it():
    start = ready().do(BUSY, ev.Activity(connections=0), STOP, UNKNOWN, after=0.2)
    assert start.phase is Phase.DRAINING
    start.do(ev.Activity(connections=0), UNKNOWN, after=0.6)
    assert start.phase is Phase.STOPPING
