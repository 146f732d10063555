"""The window: it never holds more than it may, reads every byte once, and gives back only what nobody needs."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.core.readahead.course import Block, Course, behind, engine_at, given_back, next_block


def blocks(course, most=16):
    found = []
    while True:
        course, block = next_block(course, most)
        if block is None:
            return course, found
        found.append(block)


def test_with_room_for_all_everything_is_read_in_order():
    course, found = blocks(Course((20, 0, 5), 25))
    assert found == [Block(0, 0, 16), Block(0, 16, 4), Block(2, 0, 5)]
    assert course.finished
    assert course.whole
    assert behind(engine_at(course, 3, 3), frozenset()) == range(0)


def test_a_window_runs_ahead_of_the_engine_and_waits_for_it():
    course, found = blocks(Course((10, 10, 10, 10), 25), 10)
    assert [block.shard for block in found] == [0, 1]
    assert course.ahead == 20
    course, found = blocks(engine_at(course, 1, 4), 10)
    assert [block.shard for block in found] == [2]
    assert not course.finished


def test_a_reading_that_was_overtaken_goes_on_where_the_engine_is():
    course, _ = blocks(Course((10, 10, 10, 10), 5), 5)
    _, found = blocks(engine_at(course, 2, 4), 5)
    assert found == [Block(2, 0, 5)]


def test_the_bar_never_goes_back_and_other_bars_are_taken_in_proportion():
    course = engine_at(Course((1,) * 10, 10), 4, 10)
    assert course.loaded == 4
    assert engine_at(course, 2, 10).loaded == 4
    assert engine_at(course, 5, 9).loaded == 5
    assert engine_at(course, 290, 300).loaded == 9
    for done, total in ((1, 0), (-1, 10), (11, 10)):
        assert engine_at(course, done, total) is course


def test_only_a_window_gives_back_and_spares_what_is_mapped():
    course = engine_at(Course((10,) * 6, 20), 4, 6)
    assert behind(course, frozenset()) == range(3)
    assert behind(course, frozenset({1, 5})) == range(1)
    after = given_back(course, range(3))
    assert after.dropped == 3
    assert behind(after, frozenset()) == range(3, 3)
    # What is left fits now, so that nothing more needs to go.
    assert behind(replace(engine_at(after, 6, 6), limit=30), frozenset()) == range(0)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    limit=st.integers(0, 400),
    seed=st.integers(0, 1 << 16),
)
def test_whatever_the_engine_does_the_window_holds(sizes, limit, seed):
    """No byte twice, never more than the limit ahead, and an engine at the end leaves nothing waiting."""
    chance = random.Random(seed)
    course = Course(tuple(sizes), limit)
    read = set()
    for _ in range(60):
        if chance.random() < 0.3:
            course = engine_at(course, min(course.loaded + chance.randint(0, 2), len(sizes)), len(sizes))
        course, block = next_block(course, 16)
        if block is not None:
            span = {(block.shard, byte) for byte in range(block.offset, block.offset + block.size)}
            assert not span & read
            read |= span
            assert course.ahead <= limit
    course = engine_at(course, len(sizes), len(sizes))
    course, block = next_block(course, 16)
    assert block is None
    assert course.finished
    if limit >= sum(sizes):
        assert course.whole
