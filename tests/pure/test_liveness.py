"""Alive is not healthy: judged by progress and a one-token request, never by /health (design 9)."""

from dataclasses import replace

import pytest

from pure.start import BUSY, IDLE, ready
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy

OK = ev.CanaryDone(answered=True, seconds=0.08)
FAILS = ev.CanaryDone(answered=False, seconds=0.01, detail="/v1/completions says 500: EngineDeadError")
REPORT = Policy(liveness="report")
CPU = Policy(accelerated=False)
QUIET_GPU = ev.Activity(gpu_power_watts=122.0, gpu_power_limit_watts=700.0, gpu_utilization=1.0, connections=2)


def living(start, seconds, counted=None, activity=None, canary=None):
    """Time passes with a reading every two seconds; `canary` answers what was asked, a second later.

    `counted` and `activity` are values, or functions of the seconds since the beginning.
    """
    began = start.now
    asked, looked = None, began
    while start.now < began + seconds and start.phase is Phase.READY:
        start.do(ev.Tick(), after=1.0)
        if any(isinstance(effect, fx.Canary) for effect in start.fresh):
            asked = start.now
        if start.now - looked >= 2.0:
            looked = start.now
            for given in (counted, activity):
                if given is not None:
                    start.do(given(start.now - began) if callable(given) else given)
        if asked is not None and canary is not None and start.now > asked:
            asked = None
            start.do(canary)
    return start


def hung(start):
    return start.state.fault is not None and start.state.fault.reason == "engine-hung"


@pytest.mark.parametrize("hang_after", [5.0, 20.0, 60.0, 300.0])
@pytest.mark.parametrize("canary", [None, FAILS])
def test_a_hang_with_work_is_named_in_time(hang_after, canary):
    start = ready(Policy(hang_after_s=hang_after)).do(BUSY)
    began = start.now
    living(start, hang_after + 30.0, BUSY, QUIET_GPU, canary)
    assert hung(start)
    assert hang_after <= start.now - began <= hang_after + 15.0


def test_the_end_of_a_hang_keeps_stacks_and_is_transient():
    start = living(ready().do(BUSY), 100.0, BUSY, QUIET_GPU)
    assert start.state.fault.summary == (
        "nothing has moved for 60 s and a one-token request is not answered, "
        "GPU utilisation 100% at 122 W, 2 requests running"
    )
    assert [effect.stacks for _, effect in start.of(fx.SaveIncident)] == [True]
    assert start.do(ev.IncidentSaved(), ev.Swept()).exit.code == 75


def test_an_engine_that_fails_every_request_at_once_is_named_with_its_answer():
    start = living(ready().do(IDLE), 600.0, IDLE, canary=FAILS)
    assert hung(start)
    assert "one-token requests fail: /v1/completions says 500" in start.state.fault.summary
    first = start.of(fx.Canary)[0][0]
    assert 60.0 <= start.now - first <= 75.0
    assert start.state.life.canary_failures >= 8


def test_a_single_failed_canary_is_asked_again_soon_and_forgotten_when_it_answers():
    start = living(ready().do(IDLE), 302.0, IDLE, canary=FAILS)
    assert start.count(fx.Canary) == 1
    living(start, 400.0, IDLE, canary=OK)
    times = [at for at, _ in start.of(fx.Canary)]
    assert 5.0 <= times[1] - times[0] <= 10.0
    assert times[2] - times[1] >= 300.0
    assert start.phase is Phase.READY


def test_an_idle_engine_is_asked_only_every_five_minutes():
    start = living(ready().do(IDLE), 1500.0, IDLE, canary=OK)
    assert start.count(fx.Canary) == 4
    assert start.phase is Phase.READY


def test_an_idle_engine_that_hangs_is_named_by_its_canary():
    start = living(ready().do(IDLE), 600.0, IDLE)
    assert hung(start)
    assert 60.0 <= start.now - start.of(fx.Canary)[0][0] <= 62.0


def test_a_request_that_came_after_the_hang_shows_as_a_connection_only():
    start = living(ready().do(IDLE), 100.0, IDLE, canary=OK)
    began = start.now
    living(start, 200.0, IDLE, replace(QUIET_GPU, connections=1))
    assert hung(start)
    assert start.now - began <= 120.0


MOVING = {
    "full queue": lambda t: replace(BUSY, running=8, waiting=900, generation_tokens=t * 50),
    "long prefill": lambda t: replace(BUSY, kv_usage=t / 10_000),
    "iterations": lambda t: replace(BUSY, iterations=t),
    "prompts": lambda t: replace(BUSY, prompt_tokens=t),
    "requests come and go": lambda t: replace(BUSY, running=1 + t % 4),
    "the queue moves": lambda t: replace(BUSY, waiting=1 + t % 4),
}


@pytest.mark.parametrize("name", MOVING)
def test_a_busy_engine_is_never_called_hung_nor_asked(name):
    start = living(ready().do(BUSY), 1000.0, MOVING[name], QUIET_GPU)
    assert start.phase is Phase.READY
    assert start.count(fx.Canary) == 0


def test_a_paused_client_is_no_hang_and_costs_few_canaries():
    start = living(ready().do(IDLE), 600.0, IDLE, replace(QUIET_GPU, connections=1), OK)
    assert start.phase is Phase.READY
    assert 10 <= start.count(fx.Canary) <= 20


def test_a_slow_health_says_nothing():
    start = ready().do(BUSY)
    for step in range(100):
        slow = ev.Probed(ev.ProbeOutcome.UNHEALTHY, detail="/health: no answer in time")
        start.do(slow, replace(BUSY, iterations=step), ev.Tick(), after=2.0)
    assert start.phase is Phase.READY


@pytest.mark.parametrize(
    ("policy", "watts", "limit", "lives"),
    [
        (Policy(), 300.0, 700.0, True),
        (Policy(), 122.0, 700.0, False),
        (Policy(), 140.0, 600.0, False),
        (Policy(), 400.0, None, False),
        (CPU, 690.0, 700.0, False),
    ],
)
def test_power_well_above_idle_proves_life(policy, watts, limit, lives):
    busy = ev.Activity(gpu_power_watts=watts, gpu_power_limit_watts=limit)
    start = living(ready(policy).do(BUSY), 300.0, BUSY, busy)
    assert (start.phase is Phase.READY) is lives


@pytest.mark.parametrize(("share", "policy", "lives"), [(0.9, CPU, True), (0.1, CPU, False), (1.0, Policy(), False)])
def test_workers_that_compute_prove_life_only_without_gpus(share, policy, lives):
    start = living(ready(policy).do(BUSY), 300.0, BUSY, lambda t: ev.Activity(worker_cpu_s=50.0 + share * t))
    assert (start.phase is Phase.READY) is lives


def test_without_counters_an_engine_with_clients_is_asked_and_one_without_is_idle():
    unknown = ev.Counted()
    asked = living(ready().do(unknown), 100.0, unknown, ev.Activity(connections=3), OK)
    assert 5 <= asked.count(fx.Canary) <= 10
    idle = living(ready().do(unknown), 100.0, unknown, ev.Activity(connections=0), OK)
    assert idle.count(fx.Canary) <= 1
    dead = living(ready().do(unknown), 100.0, unknown, ev.Activity(connections=3))
    assert hung(dead)


def test_connections_that_close_end_the_work():
    start = ready().do(IDLE, ev.Activity(connections=1))
    assert start.state.life.work
    assert not start.do(ev.Activity(connections=0)).state.life.work


def test_report_names_a_hang_once_and_goes_on_until_it_answers():
    start = living(ready(REPORT).do(BUSY), 300.0, BUSY, QUIET_GPU)
    assert start.phase is Phase.READY
    assert start.logged().count("engine-hung") == 1
    assert 'It is left as it is (liveness.mode = "report")' in start.logged()
    assert start.state.life.hung
    start.do(ev.CanaryDone(answered=True, seconds=250.0))
    assert not start.state.life.hung
    assert "answers again after 250.0 s" in start.logged()


def test_off_asks_nothing_and_names_nothing():
    start = living(ready(Policy(liveness="off")).do(BUSY), 1000.0, BUSY, QUIET_GPU)
    assert start.phase is Phase.READY
    assert start.count(fx.Canary) == 0


def test_a_canary_under_way_since_before_the_last_move_still_counts():
    start = living(ready().do(BUSY), 20.0, BUSY, QUIET_GPU)
    assert start.count(fx.Canary) == 1
    start.do(replace(BUSY, iterations=99), after=1.0)
    moved = start.now
    living(start, 200.0, replace(BUSY, iterations=99), QUIET_GPU)
    assert hung(start)
    assert 60.0 <= start.now - moved <= 75.0


def test_a_dead_process_is_noted_at_once_and_ends_the_service_with_its_last_words():
    start = ready().do(BUSY, ev.ProcessDied(4712, ev.Role.WORKER, "VLLM::Worker_TP1"))
    assert "VLLM::Worker_TP1 (pid 4712) died" in start.logged()
    assert start.phase is Phase.READY
    start.wait(2.5)
    assert start.state.fault.reason == "worker-killed"
    assert start.count(fx.NotifyStopping) == 1


def test_a_reload_is_for_a_ready_engine_only():
    start = ready().do(ev.ReloadRequested())
    assert start.fresh == (fx.Reload(),)
    start.do(BUSY, ev.StopRequested(), ev.ReloadRequested())
    assert "reload refused: the engine is draining, not ready" in start.logged()
