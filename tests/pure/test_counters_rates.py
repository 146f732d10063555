"""Rates over counters that may begin again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.core import rates
from vllm_supervisor.core.rates import KEPT, Counter, RateWindow
from vllm_supervisor.core.recording import decode, encode, known_types

known_types(rates)


def feed(*samples):
    """The window after samples (time, value, begin) of one engine."""
    return several(*((at, {"0": tuple(counter)}) for at, *counter in samples))


def several(*samples):
    """The window after samples (time, {engine: (value, begin)})."""
    window = RateWindow()
    for at, counters in samples:
        window = window.add(at, {label: Counter(*counter) for label, counter in counters.items()})
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
    assert window.add(5.0, {"0": Counter(99.0)}) is window


def test_memory_is_bounded():
    window = feed(*((float(t), float(t)) for t in range(1000)))
    assert len(window.samples) <= KEPT + 2


def test_an_engine_that_joins_is_no_new_begin_and_brings_no_tokens():
    window = several((0.0, {"0": (1000.0, 1.0)}), (2.0, {"0": (1100.0, 1.0), "1": (70.0, 2.0)}))
    assert window.rate(10.0, 2.0) == pytest.approx(50.0)
    window = window.add(4.0, {"0": Counter(1200.0, 1.0), "1": Counter(170.0, 2.0)})
    assert window.rate(10.0, 4.0) == pytest.approx(300.0 / 4)


def test_scaling_up_begins_all_counters_again():
    # vLLM 0.32 makes all its counters anew when engines are added (async_llm.py, _scale_elastic_ep).
    before, after = {"0": (5000.0, 1.0), "1": (6000.0, 1.0)}, {str(n): (10.0, 9.0) for n in range(4)}
    assert several((0.0, before), (2.0, after)).rate(10.0, 2.0) == pytest.approx(10.0)


def test_scaling_down_and_a_page_that_lacks_an_engine_count_nothing():
    both = {"0": (100.0,), "1": (900.0,)}
    window = several((0.0, both), (2.0, {"0": (120.0,)}), (4.0, {"0": (140.0,), "1": (960.0,)}))
    assert window.rate(10.0, 4.0) == pytest.approx((20.0 + 20.0 + 60.0) / 4)


def test_one_engine_that_begins_again_leaves_the_others_counting():
    window = several((0.0, {"0": (500.0, 1.0), "1": (500.0, 1.0)}), (2.0, {"0": (540.0, 1.0), "1": (6.0, 3.0)}))
    assert window.rate(10.0, 2.0) == pytest.approx(23.0)


def test_a_reload_carries_it_over():
    window = several((0.0, {"0": (500.0, 1.0), "1": (500.0,)}), (2.0, {"0": (540.0, 1.0), "1": (506.0,)}))
    assert decode(encode(window)) == window


ENGINES = st.dictionaries(
    st.sampled_from("0123"), st.tuples(st.floats(0, 1e9), st.sampled_from([None, 1.0, 2.0])), max_size=4
)


@given(st.lists(ENGINES, min_size=2, max_size=40))
def test_no_coming_and_going_of_engines_gives_a_negative_rate(samples):
    window = several(*((2.0 * i, counters) for i, counters in enumerate(samples)))
    assert window.rate(60.0, 2.0 * (len(samples) - 1)) >= 0.0


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=60))
def test_no_history_gives_a_negative_rate(values):
    window = feed(*((2.0 * i, value) for i, value in enumerate(values)))
    assert window.rate(10.0, 2.0 * (len(values) - 1)) >= 0.0
