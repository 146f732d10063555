"""A recording of the field decides exactly as the field did."""

import dataclasses
import json
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pure.grid_events import EVENTS
from pure.start import STANDS, reach, ready
from vllm_supervisor.core import events as ev
from vllm_supervisor.core import facts, liveness, state
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.recording import decode, encode, from_line, known_types, to_line

CAUSE = Cause("nccl-error", evidence="ncclSystemError → x", phase="connecting", advice="Look.", summary="s")
EVERY_FACT = (
    facts.PhaseSeen(Phase.COMPILING),
    facts.Progress(Phase.LOADING_WEIGHTS, 54.0, 119.0, bar="draft"),
    facts.StartupComplete(),
    facts.Figure(facts.FigureName.KV_CACHE_TOKENS, 131072.0),
    facts.Figure(facts.FigureName.ATTENTION_BACKEND, "TRITON_MLA"),
    facts.CauseFound(CAUSE),
)
EXTRA = [
    ev.PreflightDone(CAUSE, ("one", "two")),
    ev.Output(EVERY_FACT),
    ev.Activity(read_bytes=1 << 60, gpu_utilization=1.0, worker_cpu_s=0.25),
    ev.Swept(("pid 7 (vllm)",), 1 << 36, {"7": "D"}),
    ev.EngineExited(-9),
    Policy(),
    Policy(expected={Phase.COMPILING: 61.5}, watchdog_s=30.0, smoke="require", last_reason="gpu-busy"),
]


def same_types(one, other):
    """Equal values are not enough: 1.0 == 1, and "ready" == Phase.READY."""
    assert type(one) is type(other)
    if dataclasses.is_dataclass(one):
        for item in dataclasses.fields(one):
            same_types(getattr(one, item.name), getattr(other, item.name))
    elif isinstance(one, tuple):
        for left, right in zip(one, other, strict=True):
            same_types(left, right)
    elif isinstance(one, dict):
        same_types(tuple(one), tuple(other))
        same_types(tuple(one.values()), tuple(other.values()))


@pytest.mark.parametrize("value", [*EVENTS.values(), *EXTRA], ids=repr)
def test_a_line_gives_back_what_was_written(value):
    line = to_line(value, 12.5)
    assert "\n" not in line
    at, back = from_line(line)
    assert (at, back) == (12.5, value)
    same_types(value, back)


def test_every_event_and_every_fact_is_among_them():
    assert {type(value) for value in EVENTS.values()} == set(typing.get_args(ev.Event))
    assert {type(fact) for fact in EVERY_FACT} == set(typing.get_args(facts.Fact))


@given(st.builds(ev.Counted, *[st.none() | st.floats(allow_nan=False)] * 6))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_any_figure_comes_back(event):
    assert from_line(to_line(event, 0.0))[1] == event


@pytest.mark.parametrize("stand", STANDS)
def test_a_whole_state_comes_back(stand):
    known_types(state, liveness)
    kept = reach(stand).state
    back = decode(json.loads(json.dumps(encode(kept))))
    assert back == kept
    same_types(back, kept)


def test_replaying_a_recording_decides_the_same():
    lines, first = [], ready()
    began = first.now
    for value in (*EVENTS.values(), ev.StopRequested(), ev.EngineExited(0), ev.Swept()):
        first.now += 0.5
        lines.append(to_line(value, first.now))
        first.do(value)
    second = ready()
    assert second.now == began
    for line in lines:
        second.now, value = from_line(line)
        second.do(value)
    assert second.state == first.state
    assert second.told == first.told


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"at": 1}',
        '{"at": null, "value": {"type": "Tick"}}',
        '{"at": 1, "value": "Tick"}',
        '{"at": 1, "value": {"type": "NoSuchEvent"}}',
        '{"at": 1, "value": {"type": ["Tick"]}}',
        '{"at": 1, "value": {"type": "Launched"}}',
        '{"at": 1, "value": {"type": "Probed", "outcome": "no such outcome"}}',
        '{"at": 1, "value": {"type": "Output", "facts": null}}',
        '{"at": 1, "value": {"type": "Swept", "details": [1]}}',
    ],
)
def test_a_line_that_is_none_is_refused_with_a_sentence(line):
    with pytest.raises(ValueError, match="not a line of a recording"):
        from_line(line)


def test_a_key_of_a_newer_version_does_no_harm():
    raw = json.loads(to_line(ev.Launched(7), 1.0))
    raw["value"]["since_version_9"] = True
    assert from_line(json.dumps(raw))[1] == ev.Launched(7)
