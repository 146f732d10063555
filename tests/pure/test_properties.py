"""What holds for any sequence of events at any times."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pure.grid_events import EVENTS, OUTCOME
from pure.start import ANSWERED, BUSY, LINE, PID, Start, seen
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.phases import LOADING, SETTLED, Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.status import sentence
from vllm_supervisor.core.step import next_wake

LIKELY = [
    ev.PreflightDone(),
    ev.Launched(PID),
    LINE,
    ANSWERED,
    ANSWERED,
    ev.Tick(),
    seen(Phase.LOADING_WEIGHTS),
    BUSY,
    ev.Probed(OUTCOME.STRANGER, detail="port 8000 is held by pid 1"),
    ev.Output(()),
]
"""What leads far into a start; random events alone mostly end it at once."""

EVENT = st.one_of(st.sampled_from(LIKELY), st.sampled_from(list(EVENTS.values())))
GAP = st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0, 4.9, 5.0, 7.0, 40.0, 130.0, 1000.0])
STORY = st.lists(st.tuples(EVENT, GAP), max_size=40)
POLICY = st.builds(
    Policy,
    wait_s=st.sampled_from([0.0, 10.0]),
    load_wait_s=st.sampled_from([60.0, 600.0]),
    attempt=st.sampled_from([1, 5]),
    watchdog_s=st.sampled_from([None, 30.0]),
    smoke=st.sampled_from(["off", "report", "require"]),
    grace_s=st.sampled_from([0.0, 3.0]),
    drain_s=st.sampled_from([0.0, 30.0]),
    engine_drains=st.booleans(),
    liveness=st.sampled_from(["restart", "report", "off"]),
    accelerated=st.booleans(),
)
BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)


def told(policy, story):
    """The start after a story, and its effects as (event, time, effect)."""
    start = Start(policy).do(ev.Begin())
    effects = [(ev.Begin(), at, effect) for at, effect in start.told]
    for event, gap in story:
        start.now += gap
        start.do(event)
        effects += [(event, start.now, effect) for effect in start.fresh]
    return start, effects


@given(POLICY, STORY)
@BOUNDED
def test_ready_only_after_the_line_and_an_answer_of_the_living_engine(policy, story):
    start = Start(policy).do(ev.Begin())
    line = answered = alive = False
    for event, gap in story:
        start.now += gap
        alive = (alive or isinstance(event, ev.Launched)) and not isinstance(event, ev.EngineExited)
        loading = start.phase in LOADING
        line = line or (loading and event == LINE)
        answered = answered or (loading and event == ANSWERED)
        start.do(event)
        if any(isinstance(effect, fx.NotifyReady) for effect in start.fresh):
            assert line
            assert answered
            assert alive
    assert start.count(fx.NotifyReady) <= 1


@given(POLICY, STORY)
@BOUNDED
def test_systemd_is_told_only_what_the_moment_allows(policy, story):
    _, effects = told(policy, story)
    ready = stopping = False
    last = {}
    for event, at, effect in effects:
        match effect:
            case fx.NotifyReady():
                assert not stopping
                ready = True
            case fx.NotifyStopping():
                assert not stopping, "STOPPING=1 twice"
                stopping = True
            case fx.NotifyWatchdog():
                assert ready
            case fx.NotifyExtend():
                assert stopping or not ready, "it would stretch the watchdog"
                if not ready and not stopping and not isinstance(event, ev.Begin) and ended(effects, at) is None:
                    assert at - last.get("extend", float("-inf")) >= 5.0
                last["extend"] = at


def ended(effects, until):
    """The first incident up to a time: from there on the end is told, not the start."""
    return next((at for _, at, effect in effects if isinstance(effect, fx.SaveIncident) and at <= until), None)


@given(POLICY, STORY)
@BOUNDED
def test_the_exit_is_the_last_effect_and_the_only_one(policy, story):
    start, effects = told(policy, story)
    kinds = [type(effect) for _, _, effect in effects]
    assert kinds.count(fx.Exit) == (start.phase in SETTLED)
    if fx.Exit in kinds:
        assert kinds[-1] is fx.Exit


@given(POLICY, STORY)
@BOUNDED
def test_status_is_one_ascii_sentence_and_the_next_turn_is_near(policy, story):
    start = Start(policy)
    for event, gap in [(ev.Begin(), 0.0), *story]:
        start.now += gap
        start.do(event)
        text = sentence(start.state, start.now + 0.5)
        assert text
        assert text.isascii()
        assert text.isprintable()
        assert start.now <= next_wake(start.state, start.now) <= start.now + 1.0


@given(POLICY, STORY)
@BOUNDED
def test_a_stop_ends_in_bounded_time_whatever_came_before(policy, story):
    start, _ = told(policy, story)
    start.do(ev.StopRequested("SIGTERM"))
    longest = 25 + policy.grace_s + policy.drain_s + 5 + policy.stop_wait_s + 30 + 5
    start.wait(longest)
    assert start.phase in SETTLED
    code = start.exit.code
    assert (code == 0) == (start.state.fault is None)


@given(POLICY, STORY)
@BOUNDED
def test_a_start_that_nothing_moves_ends_or_is_ready(policy, story):
    start, _ = told(policy, story)
    start.wait(1200.0 + 60.0)
    assert start.phase in SETTLED | {Phase.READY}
