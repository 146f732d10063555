"""Which shards are measured, and what the figures recommend."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.core.loaders import WAYS, Measured, advice, sample, set_now
from vllm_supervisor.daemon.loaders_svg import picture

GIB = float(1 << 30)


def test_the_sample_is_spread_over_the_checkpoint():
    assert sample([10] * 12, 40) == [0, 3, 6, 9]
    assert sample([10] * 3, 1000) == [0, 1, 2]
    assert sample([50, 5, 50], 10) == [1]
    assert sample([50, 50], 10) == []
    assert sample([], 10) == []


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(0, 500))
def test_the_sample_never_exceeds_its_limit(sizes, limit):
    chosen = sample(sizes, limit)
    assert len(set(chosen)) == len(chosen)
    assert sum(sizes[number] for number in chosen) <= limit
    assert bool(chosen) == any(size <= limit for size in sizes)


def test_a_clearly_faster_way_is_recommended_with_its_setting_and_what_it_saves():
    found = [Measured("default", GIB, 4 * GIB), Measured("prefetch", 2 * GIB, 3 * GIB)]
    said = advice(3 * GIB, found, 100 << 30)
    assert 'set in [engine.args] safetensors-load-strategy = "prefetch"' in said[0]
    assert "would take 50 s instead of 100 s" in said[0]
    assert "the disk itself gives 3.0 GiB/s" in said[1]
    assert said[2] == (
        "from memory, where the read-ahead and `vllm-supervisor warm` bring what fits, the default reads 4.0 GiB/s and "
        "prefetch 3.0 GiB/s: where memory holds the weights, change nothing"
    )
    found[1] = Measured("prefetch", 2 * GIB, 3.5 * GIB)
    assert advice(3 * GIB, found, 100 << 30)[2].endswith(" bring what fits, prefetch reads 3.5 GiB/s")


def test_a_little_faster_is_no_reason_to_change():
    found = [Measured("default", GIB), Measured("eager", 1.2 * GIB)]
    assert advice(1.1 * GIB, found, 100 << 30) == [
        "the default is as good as any for 100.0 GiB: 1.0 GiB/s from the disk; leave it",
        "the disk itself gives no more: only a faster one would help",
    ]


def test_a_way_that_is_faster_from_memory_alone_is_told_when_it_saves_time():
    found = [Measured("default", GIB, 2 * GIB), Measured("prefetch", GIB, 4 * GIB)]
    assert advice(None, found, 540 << 30)[1] == (
        "from memory, where the read-ahead and `vllm-supervisor warm` bring what fits, prefetch reads 4.0 GiB/s and the "
        'default 2.0 GiB/s: where memory holds the weights, set in [engine.args] safetensors-load-strategy = "prefetch"'
    )
    assert advice(None, found, 3 << 30)[1].endswith("bring what fits, the default reads 2.0 GiB/s")


def test_neither_a_small_sample_nor_less_than_a_second_is_a_reason_to_change():
    found = [Measured("default", GIB), Measured("eager", 2 * GIB)]
    assert "leave it" in advice(None, found, int(1.9 * GIB))[0]
    assert "set in" in advice(None, found, int(2.1 * GIB))[0]
    assert advice(None, found, 100 << 30, read=700 << 10) == [
        "700.0 KiB tell what opening files costs, and not how fast they are read: nothing is recommended below 256.0 MiB"
    ]


def test_without_cold_figures_nothing_is_recommended():
    assert advice(None, [Measured("default", None, GIB)], 1) == ["no cold figures, so nothing is recommended"]


MULTI = '{"enable_multithread_load": true}'


@pytest.mark.parametrize(
    ("options", "way"),
    [
        ({}, "default"),
        ({"load-format": "safetensors", "safetensors-load-strategy": "lazy"}, "default"),
        ({"safetensors-load-strategy": "prefetch"}, "prefetch"),
        ({"safetensors-load-strategy": "torchao"}, ""),
        ({"model-loader-extra-config": MULTI}, "multithread"),
        ({"load-format": "InstantTensor"}, "instanttensor"),
        ({"load-format": "ipc_cache"}, ""),
    ],
)
def test_the_way_that_is_set_is_known(options, way):
    assert set_now(options) == way
    assert not way or way in {one.name for one in WAYS}


def test_a_way_that_is_set_is_what_the_others_are_compared_with():
    found = [Measured("default", 2 * GIB, 3 * GIB), Measured("prefetch", GIB, 3 * GIB), Measured("eager", 1.5 * GIB)]
    (said, *_) = advice(3 * GIB, found, 100 << 30, "prefetch")
    assert said.startswith("the default reads 2.0 GiB/s from the disk, prefetch 1.0 GiB/s: ")
    assert said.endswith('; take safetensors-load-strategy = "prefetch" out of [engine.args]')
    (said, *_) = advice(3 * GIB, found[1:], 100 << 30, "prefetch")
    assert said.endswith(
        '; set in [engine.args] safetensors-load-strategy = "eager" instead of safetensors-load-strategy = "prefetch"'
    )
    found = [Measured("default", GIB), Measured("prefetch", 1.1 * GIB, 2 * GIB)]
    assert advice(3 * GIB, found, 100 << 30, "prefetch") == [
        "prefetch is as good as any for 100.0 GiB: 1.1 GiB/s from the disk; leave it",
        "the disk itself gives 3.0 GiB/s, which the read-ahead of the supervisor uses (load.readahead)",
        "from memory, where the read-ahead and `vllm-supervisor warm` bring what fits, prefetch reads 2.0 GiB/s",
    ]
    # What is set could not be measured: the default stands for it.
    assert (
        "the default 1.0 GiB/s"
        in advice(None, [Measured("default", GIB), Measured("eager", 2 * GIB)], 100 << 30, "ipc")[0]
    )


def test_reading_ahead_does_not_help_a_way_past_the_page_cache():
    found = [Measured("default", GIB, 4 * GIB), Measured("runai_streamer", 2 * GIB, 2 * GIB)]
    assert advice(3 * GIB, found, 100 << 30)[1:] == [
        "the disk itself gives 3.0 GiB/s",
        (
            "from memory, where the read-ahead and `vllm-supervisor warm` bring what fits, the default reads 4.0 GiB/s "
            "and runai_streamer 2.0 GiB/s: where memory holds the weights, change nothing"
        ),
    ]
    assert len(advice(3 * GIB, found[1:], 100 << 30, "runai_streamer")) == 2


def test_the_picture_stands_alone_and_shows_what_was_measured():
    found = [Measured("default", GIB, 2 * GIB), Measured("instanttensor", problem="not installed")]
    drawn = ET.fromstring(picture("a <b> & c", 1.5 * GIB, found))
    bars = {one.get("class"): float(one.get("width")) for one in drawn.iter() if one.get("class") in {"cold", "warm"}}
    assert bars["warm"] == 2 * bars["cold"]
    assert [one.get("class") for one in drawn.iter() if one.tag.endswith("line")] == ["disk"]
    texts = [one.text for one in drawn.iter() if one.tag.endswith("text")]
    assert "a <b> & c" in texts
    assert "instanttensor" not in texts
