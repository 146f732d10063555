"""Slow is not dead: evidence, budgets, and what systemd is told (design 6)."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pure.start import ANSWERED, LINE, Start, launched, loading, seen
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.facts import CauseFound, Figure, FigureName, Progress
from vllm_supervisor.core.phases import BUDGET_CEILING, DEFAULT_BUDGETS, LOADING, Phase, budget
from vllm_supervisor.core.policy import Policy

GIB = 1 << 30
BASE = ev.Activity(read_bytes=GIB, resident_bytes=GIB, gpu_bytes=GIB, cache_files=5, compiler_cpu_s=1.0)


def systemd_timeout_at(start):
    """When systemd 252 would fire, by its own rule: a later end counts, an earlier one is ignored."""
    at = start.state.started + start.policy.systemd_start_timeout_s
    for told, effect in start.of(fx.NotifyExtend):
        at = max(at, told + effect.seconds)
    return at


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase in LOADING and phase is not Phase.VERIFYING])
def test_a_silent_phase_ends_at_its_budget_a_minute_before_systemd(phase):
    start = launched() if phase is Phase.LAUNCHING else loading(phase)
    began = start.now
    before = systemd_timeout_at(start.wait(7.0))
    start.wait(DEFAULT_BUDGETS[phase] + 5.0)
    at, incident = start.of(fx.SaveIncident)[0]
    assert incident.cause.reason == "load-stalled"
    assert began + DEFAULT_BUDGETS[phase] <= at <= began + DEFAULT_BUDGETS[phase] + 1.0
    assert before - at >= 60.0 - 1.0


EVIDENCE = {
    "read": replace(BASE, read_bytes=GIB + (1 << 20)),
    "resident": replace(BASE, resident_bytes=GIB + (8 << 20)),
    "gpu": replace(BASE, gpu_bytes=GIB + (16 << 20)),
    "cache": replace(BASE, cache_files=6),
    "compiler": replace(BASE, compiler_cpu_s=1.6),
}
NONE = {
    "same": BASE,
    "unknown": ev.Activity(),
    "worker spins": replace(BASE, worker_cpu_s=900.0, gpu_utilization=1.0, gpu_power_watts=120.0),
    "a few bytes": replace(BASE, read_bytes=GIB + 4096, resident_bytes=GIB + 4096),
    "memory falls": replace(BASE, resident_bytes=0, gpu_bytes=0),
    "connections": replace(BASE, connections=3),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_growth_keeps_a_start_alive(name):
    start = loading(Phase.LOADING_WEIGHTS).do(BASE).wait(100.0).do(EVIDENCE[name]).wait(119.0)
    assert start.phase is Phase.LOADING_WEIGHTS
    assert start.wait(2.0).phase is Phase.STOPPING


@pytest.mark.parametrize("name", NONE)
def test_standing_still_does_not(name):
    start = loading(Phase.LOADING_WEIGHTS).do(BASE).wait(100.0).do(NONE[name])
    assert not [effect for effect in start.fresh if isinstance(effect, fx.NotifyExtend)]
    assert start.wait(21.0).phase is Phase.STOPPING


@pytest.mark.parametrize("fact", [Progress(Phase.LOADING_WEIGHTS, 3, 119), Figure(FigureName.WEIGHTS_GIB, 70.8)])
def test_lines_keep_a_start_alive(fact):
    start = loading(Phase.LOADING_WEIGHTS).wait(100.0).do(ev.Output((fact,))).wait(119.0)
    assert start.phase is Phase.LOADING_WEIGHTS


def test_memory_that_swings_is_no_progress_and_a_second_compiler_is():
    start = loading(Phase.COMPILING).do(BASE)
    for share in (0, 1, 0, 1):
        start.do(replace(BASE, resident_bytes=GIB * share), after=2.0)
    assert start.state.evidence.at < start.now - 7.0
    start.do(replace(BASE, compiler_cpu_s=0.0), replace(BASE, compiler_cpu_s=0.6), after=2.0)
    assert start.state.evidence.at == start.now


def test_slow_growth_adds_up():
    start = loading(Phase.LOADING_WEIGHTS).do(BASE)
    for step in range(1, 11):
        start.do(replace(BASE, read_bytes=GIB + step * (1 << 17)), after=2.0)
    assert start.now - 5.0 <= start.state.evidence.at <= start.now - 2.0


def test_extensions_come_with_evidence_only_and_at_most_every_five_seconds():
    start = loading(Phase.COMPILING).wait(30.0)
    quiet = start.count(fx.NotifyExtend)
    assert not start.wait(300.0).of(fx.NotifyExtend)[quiet:]
    for step in range(40):
        start.do(replace(BASE, read_bytes=step * GIB), after=0.5)
    times = [at for at, _ in start.of(fx.NotifyExtend)[quiet:]]
    assert 4 <= len(times) <= 5
    assert all(later - earlier >= 5.0 for earlier, later in itertools.pairwise(times))
    assert {effect.seconds for _, effect in start.of(fx.NotifyExtend)[quiet:]} == {900.0 + 60.0}


PHASES = [phase for phase in Phase if phase in LOADING and phase is not Phase.VERIFYING]


@given(
    st.lists(st.tuples(st.sampled_from(PHASES), st.sampled_from([0.0, 0.1, 3.0, 4.9, 5.0, 30.0, 100.0])), max_size=25),
    st.sampled_from([40.0, 120.0]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_our_verdict_is_a_minute_before_systemds_for_any_pattern_of_evidence(story, short):
    start = launched(Policy(budgets={**DEFAULT_BUDGETS, Phase.LAUNCHING: short, Phase.LOADING_WEIGHTS: short}))
    for phase, gap in story:
        start.wait(gap).do(seen(phase))
    start.wait(BUDGET_CEILING)
    verdict, _ = start.of(fx.SaveIncident)[0]
    told = [(at, effect) for at, effect in start.told if at < verdict]
    assert systemd_timeout_at(replace(start, told=told)) - verdict >= 60.0 - 1.0


def test_the_sentence_of_a_stall_says_since_when_what_moved_and_at_which_power():
    spinning = replace(BASE, worker_cpu_s=40.0, gpu_utilization=1.0, gpu_power_watts=122.0)
    start = loading(Phase.LOADING_WEIGHTS).do(spinning).do(replace(spinning, worker_cpu_s=158.0)).wait(125.0)
    cause = start.state.fault
    assert cause.summary == (
        "no progress in loading-weights for 2 min (last: the engine read from disk), "
        "GPU utilisation 100% at 122 W, every worker used, or waited for, 118 s of CPU time or more meanwhile"
    )
    assert cause.phase == "loading-weights"
    assert cause.advice


def test_a_stall_goes_by_a_permanent_cause_in_the_log_but_not_by_a_transient_one():
    permanent, transient = Cause("gpu-out-of-memory", evidence="out of memory"), Cause("nccl-error", evidence="retry")
    for suspect, reason in ((permanent, "gpu-out-of-memory"), (transient, "load-stalled")):
        start = loading(Phase.LOADING_WEIGHTS).do(ev.Output((CauseFound(suspect),))).wait(125.0)
        assert start.state.fault.reason == reason


def test_budgets_from_the_history_are_three_gaps_within_their_bounds():
    assert budget(Phase.COMPILING, None) == 900.0
    assert budget(Phase.COMPILING, 200.0) == 600.0
    assert budget(Phase.COMPILING, 1.0) == 300.0
    assert budget(Phase.COMPILING, 10_000.0) == 1800.0


def test_the_wait_for_the_first_answer_is_a_gap_and_the_check_is_none_of_launching():
    start = Start().do(ev.Begin()).wait(50.0).do(ev.PreflightDone()).do(ev.Launched(7), after=3.0)
    start.do(LINE, ev.Probed(ev.ProbeOutcome.NO_ANSWER, full=True), after=1.0).do(ANSWERED, after=90.0)
    gaps = start.state.evidence.gaps
    assert gaps[Phase.VERIFYING] == 90.0
    assert gaps[Phase.LAUNCHING] == 3.0


def test_a_check_that_hangs_ends_by_itself():
    start = Start().do(ev.Begin()).wait(61.0)
    assert start.state.fault.summary == "the check did not end within 60 s"
    assert start.do(ev.IncidentSaved()).exit.code == 75


def test_the_announced_pause_is_told_to_systemd_at_once():
    policy = Policy(wait_s=600.0, attempt=4, last_reason="nccl-error")
    start = Start(policy).do(ev.Begin())
    assert [effect.seconds for _, effect in start.of(fx.NotifyExtend)] == [780.0]
    start.wait(599.0)
    assert start.phase is Phase.WAITING
    assert start.wait(2.0).phase is Phase.PREFLIGHT
    assert start.count(fx.Preflight) == 1
    assert start.count(fx.NotifyExtend) == 1


def test_a_sigterm_at_systemds_timeout_is_told_from_a_stop():
    start = loading(Phase.LOADING_WEIGHTS)
    start.now = systemd_timeout_at(start)  # we were not run for minutes: a frozen machine
    start.do(ev.StopRequested("SIGTERM"))
    assert start.state.fault.reason == "load-stalled"
    assert "systemd's start timeout" in start.state.fault.summary
    start.do(ev.IncidentSaved(), ev.Swept())
    assert start.exit.code == 75

    asked = loading(Phase.LOADING_WEIGHTS).wait(100.0).do(ev.StopRequested("SIGTERM"))
    assert asked.state.fault is None
    assert asked.do(ev.EngineExited(-2), ev.Swept()).exit.code == 0


def test_incident_and_teardown_of_a_failed_start_extend_too():
    start = loading(Phase.COMPILING).do(ev.EngineExited(1))
    assert any(isinstance(effect, fx.NotifyExtend) for effect in start.fresh)
    assert any(isinstance(effect, fx.NotifyExtend) for effect in start.do(ev.IncidentSaved()).fresh)
