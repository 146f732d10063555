"""Several engines behind one address: one that hangs beside others is named, and no other is."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pure.several_world import (
    CLIENTS,
    ELSEWHERE,
    SILENT,
    WORKING,
    Engine,
    busy,
    fault,
    idle,
    page,
    run,
    stopped,
    working,
)
from pure.start import BUSY, IDLE, ready
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core import liveness, several, state
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.recording import decode, encode, known_types
from vllm_supervisor.core.status import sentence

known_types(state, liveness)
REPORT = Policy(liveness="report")


@pytest.mark.parametrize("hang_after", [20.0, 60.0, 300.0])
@pytest.mark.parametrize("answers", [SILENT, ELSEWHERE])
def test_one_that_stops_under_load_is_named_in_time(hang_after, answers):
    engines = {"0": working(), "1": stopped(10.0, answers)}
    start = ready(Policy(hang_after_s=hang_after))
    began = start.now
    run(start, hang_after + 60.0, engines, CLIENTS)
    assert start.state.fault.reason == "engine-hung"
    assert hang_after + 10.0 <= start.now - began <= hang_after + 30.0
    assert fault(start).startswith("engine 1 of 2: nothing has moved for ")
    assert "engine 0 last moved " in fault(start)
    assert "2 requests running" in fault(start)
    assert ("answered, but none of them by it" in fault(start)) is (answers == ELSEWHERE)
    assert start.state.fault.advice.startswith("All engines are restarted")
    assert [effect.stacks for _, effect in start.of(fx.SaveIncident)] == [True]


def test_one_that_hangs_without_work_is_named_by_the_request_that_was_sent_to_it():
    engines = {"0": working(), "1": Engine(answers=lambda t: SILENT)}
    start = run(ready(), 400.0, engines, CLIENTS)
    assert fault(start).startswith("engine 1 of 2: nothing has moved for ")
    assert {effect.engine for _, effect in start.of(fx.Canary)} == {"1"}


def test_an_idle_one_beside_a_busy_one_is_asked_now_and_then_and_never_called_hung():
    start = run(ready(), 1200.0, {"0": working(), "1": idle()}, CLIENTS)
    assert start.phase is Phase.READY
    asked = [effect for _, effect in start.of(fx.Canary)]
    assert {(effect.engine, effect.rank) for effect in asked} == {("1", 1)}
    assert 20 <= len(asked) <= 45
    quiet = run(ready(), 1200.0, {"0": idle(), "1": idle()}, replace(CLIENTS, connections=0))
    assert quiet.count(fx.Canary) == 2 * 3


def test_all_that_hang_together_are_named_together():
    start = run(ready(), 200.0, {"0": stopped(10.0), "1": stopped(10.0)}, CLIENTS)
    assert fault(start).startswith("all 2 engines: nothing has moved for ")
    assert "last moved" not in fault(start)


def test_lock_step_dummy_steps_of_idle_ones_are_no_hang_and_no_proof_of_a_stopped_one():
    # Mixture-of-experts engines step together: an idle one computes without counting anything.
    def computing(start, t):
        cpu = {label: ev.Activity(worker_cpu_s=0.9 * t) for label in "012"}
        cpu["2"] = ev.Activity(worker_cpu_s=5.0)
        start.do(replace(CLIENTS, worker_cpu_s=5.0, engines=cpu))

    three = {"0": working(), "1": Engine(answers=lambda t: SILENT), "2": working()}
    start = run(ready(Policy(accelerated=False)), 400.0, three, each=computing)
    assert start.phase is Phase.READY
    three["2"] = stopped(0.0)
    run(start, 200.0, three, each=computing)
    assert fault(start).startswith("engine 2 of 3: ")


def test_the_power_of_its_own_gpus_proves_that_one_alone():
    power = ev.Activity(gpu_power_watts=600.0, gpu_power_limit_watts=700.0)
    activity = replace(CLIENTS, engines={"0": power, "1": replace(power, gpu_power_watts=122.0)})
    start = run(ready(), 300.0, {"0": stopped(10.0), "1": stopped(10.0)}, activity)
    assert fault(start).startswith("engine 1 of 2: ")
    whole = run(ready(), 300.0, {"0": stopped(10.0), "1": stopped(10.0)}, replace(power, connections=2))
    assert whole.phase is Phase.READY


def test_engines_that_come_go_and_begin_again_are_no_hang():
    engines = {"0": working(), "1": working()}

    def change(start, t):
        if t == 50:
            engines["2"] = Engine(lambda t: replace(BUSY, generation_tokens=50 * (t - 50), iterations=t))
        if t == 150:
            del engines["1"]
        if t == 250:
            engines["0"] = Engine(lambda t: replace(BUSY, generation_tokens=t - 250, iterations=t))
        if t == 350:
            del engines["2"]
        if t == 450:
            engines["1"] = idle()

    start = run(ready(), 900.0, engines, CLIENTS, change)
    assert start.phase is Phase.READY
    assert set(start.state.engines) == {"0", "1"}
    assert "engine-hung" not in start.logged()


def test_a_page_that_cannot_be_read_leaves_the_engines_to_their_requests():
    start = run(ready(REPORT), 20.0, {"0": working(), "1": working()}, CLIENTS)
    for _ in range(100):
        start.do(ev.Counted(), ev.Tick(), after=1.0)
        for effect in start.fresh:
            if isinstance(effect, fx.Canary):
                start.do(ev.CanaryDone(answered=effect.engine == "0", seconds=1.0, engine=effect.engine, detail="500"))
    assert [label for label, life in start.state.engines.items() if life.hung] == ["1"]


def test_report_names_each_once_and_tells_when_it_works_again():
    engines = {"0": working(), "1": Engine(lambda t: busy(10.0 if 10 <= t < 400 else t), lambda t: SILENT)}
    start = run(ready(REPORT), 500.0, engines, CLIENTS)
    assert start.phase is Phase.READY
    assert start.logged().count("engine-hung") == 1
    assert "requests running; engine 0 last moved" in start.logged()
    assert 'It is left as it is (liveness.mode = "report")' in start.logged()
    assert "restarted" not in start.logged()
    assert "engine 1 of 2 works again" in start.logged()
    assert not start.state.life.hung
    assert start.count(fx.SaveIncident) == 1


def test_what_is_shown_while_one_hangs():
    start = run(ready(REPORT), 45.0, {"0": working(), "1": stopped(10.0)}, CLIENTS)
    assert sentence(start.state, start.now) == (
        "Ready, but nothing has moved for 35 s in engine 1 of 2; asking for one token"
    )
    run(
        start, 60.0, {"0": Engine(lambda t: busy(t + 99)), "1": Engine(lambda t: busy(10.0), lambda t: SILENT)}, CLIENTS
    )
    assert sentence(start.state, start.now).startswith("Hung: engine 1 of 2: nothing has moved for ")
    assert start.state.life.hung
    shown = several.table(start.state.engines, start.now)
    assert [(label, row["hung"], row["running"]) for label, row in shown.items()] == [
        ("0", False, 2.0),
        ("1", True, 2.0),
    ]


def test_off_asks_nothing_and_names_nothing():
    start = run(ready(Policy(liveness="off")), 600.0, {"0": working(), "1": stopped(10.0)}, CLIENTS)
    assert start.phase is Phase.READY
    assert start.count(fx.Canary) == 0


@pytest.mark.parametrize(
    ("labels", "text"),
    [("3", "engine 3 of 8"), ("13", "engines 1, 3 of 8"), ("01234", "5 engines of 8"), ("01234567", "all 8 engines")],
)
def test_engines_in_words(labels, text):
    assert several.name(dict.fromkeys("01234567", liveness.Life(0.0)), labels) == text


def test_it_is_recorded_and_carried_over():
    start = run(ready(REPORT), 100.0, {"0": working(), "1": stopped(10.0)}, CLIENTS)
    seen = page({"0": working(), "1": idle()}, 3.0)
    assert decode(encode(seen)) == seen
    assert decode(encode(start.state)) == start.state


STRETCH = st.tuples(st.integers(2, 40), st.booleans(), st.booleans(), st.booleans())
"""Pairs of seconds, and through them: there are requests, figures move, requests of ours are answered."""


def behaviour(stretches):
    """An engine that behaves so, one stretch after the other, and works when they are over."""
    moments = [how for pairs, *how in stretches for _ in range(pairs)]

    def at(t):
        return moments[int(t) // 2] if int(t) // 2 < len(moments) else (False, False, True)

    def figures(t):
        moved = sum(1 for how in moments[: int(t) // 2 + 1] if how[1])
        return replace(BUSY if at(t)[0] else IDLE, iterations=7.0 + moved)

    return lambda: Engine(figures, lambda t: WORKING if at(t)[2] else SILENT)


def followed(start, engines, activity, lives):
    """When each engine was asked, and when it was called hung."""
    course = []

    def note(start, t):
        for label, life in lives(start).items():
            asked = any(isinstance(effect, fx.Canary) and effect.engine in {label, ""} for effect in start.fresh)
            course.append((t, label, asked, life.hung, life.proof_at, life.canary_sent))

    run(start, 200.0, engines, activity, note)
    return course


@given(st.lists(st.lists(STRETCH, max_size=6), min_size=2, max_size=4), st.sampled_from([0, 4]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_several_engines_are_as_many_decisions_of_one(stretches, clients):
    kinds = {str(number): behaviour(each) for number, each in enumerate(stretches)}
    activity = replace(CLIENTS, connections=clients)
    policy = Policy(liveness="report", hang_after_s=30.0, canary_every_s=60.0)

    def begun(engines):
        return ready(policy).do(activity, page(engines, 0.0))

    engines = {label: make() for label, make in kinds.items()}
    together = followed(begun(engines), engines, activity, lambda start: start.state.engines)
    for label, make in kinds.items():
        one = {"": make()}
        alone = followed(begun(one), one, activity, lambda start: {"": start.state.life})
        assert [row[:1] + row[2:] for row in together if row[1] == label] == [row[:1] + row[2:] for row in alone]
