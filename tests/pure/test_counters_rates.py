"""Rates over counters that may begin again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.core.rates import KEPT, RateWindow


def feed(*samples):
    window = RateWindow()
    for sample in samples:
        window = window.add(*sample)
    return window


def test_nothing_is_known_before_the_first_sample_and_zero_after_it():
    assert RateWindow().rates(0.0) == {"10s": None, "60s": None}
    assert feed((0.0, 34.0)).rates(0.0) == {"10s": 0.0, "60s": 0.0}


def test_a_steady_counter_has_its_rate_in_both_windows():
    window = feed(*((t, 50.0 * t) for t in range(0, 121, 2)))
    assert window.rates(120.0) == {"10s": pytest.approx(50.0), "60s": pytest.approx(50.0)}


def test_windows_see_only_their_own_time():
    window = feed(*((t, 100.0 * min(t, 60)) for t in range(0, 91, 2)))
    assert window.rate(10.0, 90.0) == 0.0
    assert window.rate(60.0, 90.0) == pytest.approx(50.0)


def test_a_young_window_is_the_mean_of_what_it_has_seen():
    assert feed((0.0, 0.0), (2.0, 100.0)).rate(60.0, 2.0) == pytest.approx(50.0)


def test_a_counter_that_begins_again_never_gives_a_negative_rate():
    assert feed((0.0, 1000.0), (2.0, 1100.0), (4.0, 40.0)).rate(10.0, 4.0) == pytest.approx(140.0 / 4)


def test_a_new_begin_counts_even_when_the_new_counter_is_already_larger():
    assert feed((0.0, 10.0, 111.0), (2.0, 30.0, 222.0)).rate(10.0, 2.0) == pytest.approx(15.0)


def test_a_begin_that_is_not_told_is_no_new_begin():
    window = feed((0.0, 10.0, 111.0), (2.0, 30.0, None), (4.0, 50.0, 111.0))
    assert window.rate(10.0, 4.0) == pytest.approx(10.0)


def test_old_samples_say_nothing_about_now():
    window = feed((0.0, 0.0), (2.0, 100.0))
    assert window.rate(10.0, 12.0) is not None
    assert window.rate(10.0, 12.1) is None
    assert window.rate(60.0, 12.1) is not None


def test_a_sample_from_the_past_is_left_out():
    window = feed((5.0, 10.0))
    assert window.add(5.0, 99.0) is window


def test_memory_is_bounded():
    window = feed(*((float(t), float(t)) for t in range(1000)))
    assert len(window.samples) <= KEPT + 2


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=60))
def test_no_history_gives_a_negative_rate(values):
    window = feed(*((2.0 * i, value) for i, value in enumerate(values)))
    assert window.rate(10.0, 2.0 * (len(values) - 1)) >= 0.0
