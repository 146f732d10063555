"""Readings of GPUs as values: the helper's lines, and whose memory it is."""

import json

import pytest

from vllm_supervisor.core.gpu import UNLISTED_BYTES, GpuLost, GpuSample, engine_bytes, left_behind, parse_report


def sample(**fields):
    return GpuSample(index=0, uuid="GPU-a", name="card", **fields)


def test_engine_bytes_sums_our_processes_and_nobody_elses():
    one = sample(processes=((10, 1000), (11, 500), (99, 7000)))
    assert engine_bytes(one, frozenset({10, 11, 12})) == 1500


def test_engine_bytes_is_zero_when_only_strangers_are_listed():
    assert engine_bytes(sample(processes=((99, 7000),)), frozenset({10})) == 0


@pytest.mark.parametrize(
    "one",
    [
        sample(processes=None),
        sample(processes=((10, None), (11, 5))),
        sample(processes=(), memory_used_bytes=UNLISTED_BYTES + 1),
    ],
    ids=["pids hidden", "size hidden", "much memory and no process"],
)
def test_engine_bytes_is_unknown_rather_than_zero(one):
    assert engine_bytes(one, frozenset({10})) is None


def test_an_idle_card_holds_nothing_of_ours():
    assert engine_bytes(sample(processes=(), memory_used_bytes=600 << 20), frozenset({10})) == 0


def test_what_gone_processes_left_is_told_by_their_pids_else_by_what_was_in_use_before():
    ours, gib = frozenset({10}), 1 << 30
    listed = [sample(processes=((10, 7 * gib), (99, 70 * gib)), memory_used_bytes=77 * gib)]
    assert left_behind(listed, ours, 0) == left_behind(listed, ours, 0, shared=True) == 7 * gib
    assert left_behind([sample(processes=((99, 70 * gib),), memory_used_bytes=70 * gib)], ours, 0) == 0
    hidden = [sample(processes=None, memory_used_bytes=71 * gib)]
    assert left_behind(hidden, ours, 10 * gib) == 60 * gib
    assert left_behind(hidden, ours, 71 * gib) == left_behind(hidden, ours, None) == 0
    assert left_behind([*listed, *hidden], ours, 10 * gib) == 67 * gib, "each GPU as far as it tells"
    assert (
        left_behind([*listed, *hidden], ours, None) == left_behind([*listed, *hidden], ours, 0, shared=True) == 7 * gib
    )


def test_hidden_pids_blame_nobody_for_memory_that_two_units_share():
    assert left_behind([sample(processes=None, memory_used_bytes=80 << 30)], frozenset({10}), 0, shared=True) == 0


def test_a_line_becomes_a_report():
    line = json.dumps(
        {
            "at": 5.0,
            "unix": 1e9,
            "ok": True,
            "samples": [
                {"index": 1, "uuid": "GPU-b", "name": "card", "processes": [[7, 9], [8, None]], "power_watts": 3}
            ],
            "lost": [{"index": 0, "uuid": "GPU-a", "name": "card", "reason": "lost"}],
            "xid_events": [[0, 79]],
        }
    )
    report = parse_report(line.encode())
    (one,) = report.samples
    assert (one.index, one.uuid, one.power_watts, one.processes) == (1, "GPU-b", 3, ((7, 9), (8, None)))
    assert one.temperature_celsius is None
    assert report.lost == (GpuLost(0, "GPU-a", "card", "lost"),)
    assert report.xid_events == ((0, 79),)


@pytest.mark.parametrize(
    "line",
    [
        b"Traceback (most recent call last):",
        b"{}",
        b"[]",
        b'"at"',
        b'{"at":1,"unix":1,"ok":true,"samples":[{"index":0,"fan":3}]}',
        b'{"at":1,"unix":1,"ok":true,"samples":[5]}',
        b'{"at":1,"unix":1,"ok":true,"xid_events":[[1]]}',
        b"\xff\xfe",
    ],
)
def test_anything_else_is_refused_as_one_kind_of_error(line):
    with pytest.raises(ValueError):
        parse_report(line)
