"""How much is read ahead, what stops it, and what is said of it."""

import pytest

from vllm_supervisor.core.plan.sizes import GIB
from vllm_supervisor.core.readahead.memory import (
    Memory,
    pressed,
    read_cgroup,
    read_meminfo,
    read_pressure,
    room,
    shortage,
    tightest,
)
from vllm_supervisor.core.readahead.order import Order
from vllm_supervisor.core.readahead.report import Doing, Report, figures, from_line, percent, to_line, words


def test_room_is_what_neither_machine_nor_engine_need():
    seen = Memory(100 * GIB, 90 * GIB)
    assert room(seen, Order("/m"), 50 * GIB, 0.0) == 85 * GIB
    assert room(seen, Order("/m", engine_bytes=24 * GIB), 50 * GIB, 0.0) == 61 * GIB
    assert room(seen, Order("/m", weights_stay=True), 50 * GIB, 0.0) == 35 * GIB
    assert room(seen, Order("/m", weights_stay=True), 50 * GIB, 0.5) == 60 * GIB
    assert room(seen, Order("/m", limit_bytes=GIB), 50 * GIB, 0.0) == GIB
    assert room(Memory(4 * GIB, GIB), Order("/m"), GIB, 0.0) == 0


def test_pressure_stops_and_only_its_end_goes_on():
    calm = Memory(100 * GIB, 50 * GIB, 7.0)
    assert not pressed(calm, before=False)
    assert pressed(calm, before=True)
    assert pressed(Memory(100 * GIB, 50 * GIB, 10.0), before=False)
    assert not pressed(Memory(100 * GIB, 50 * GIB, None), before=True)
    assert pressed(Memory(100 * GIB, 2 * GIB, None), before=False)


def test_too_little_memory_is_said_with_figures():
    seen = Memory(8 * GIB, 2 * GIB)
    assert shortage(seen, Order("/m"), GIB, 50 * GIB) == ""
    assert "of 2.0 GiB available memory 0 B may be used" in shortage(seen, Order("/m"), 0, 50 * GIB)
    whole = Order("/m", whole_only=True)
    assert "all of it (50.0 GiB)" in shortage(seen, whole, GIB, 50 * GIB)
    assert shortage(seen, whole, 50 * GIB, 50 * GIB) == ""
    small = Order("/m", limit_bytes=1000)
    assert "as load.readahead allows" in shortage(seen, small, 1000, 50 * GIB)


def test_what_the_kernel_says():
    assert read_meminfo("MemTotal:  8 kB\nMemFree: 1 kB\nMemAvailable:  4 kB\n") == Memory(8192, 4096)
    assert read_meminfo("MemTotal:  8 kB\n") is None
    assert read_pressure("some avg10=1.50 avg60=0.00 avg300=0.00 total=3\nfull avg10=9.0") == 1.5
    assert read_pressure("") is read_pressure("some avg10=x") is None


@pytest.mark.parametrize(
    ("files", "seen"),
    [
        ({"memory.max": "max\n", "memory.current": "5\n"}, None),
        ({"memory.max": "100\n", "memory.high": "80\n", "memory.current": "50\n"}, Memory(80, 30)),
        (
            {
                "memory.max": "100",
                "memory.current": "90",
                "memory.stat": "anon 1\ninactive_file 30\nactive_file 10\n",
                "memory.pressure": "some avg10=2.0 x",
            },
            Memory(100, 50, 2.0),
        ),
        ({"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "5"}, None),
        ({"memory.limit_in_bytes": "100", "memory.usage_in_bytes": "30"}, Memory(100, 70)),
        ({"memory.max": "100"}, None),
        ({}, None),
    ],
)
def test_a_cgroup_bounds_it_too(files, seen):
    assert read_cgroup(files) == seen


def test_the_tightest_bound_counts_and_the_highest_pressure():
    assert tightest((Memory(100, 50, None), Memory(30, 20, 1.0), Memory(60, 55, 3.0))) == Memory(30, 20, 3.0)
    assert tightest((Memory(100, 50, None),)).pressure is None


def report(doing=Doing.READING, **more):
    return Report(doing, total_bytes=20 * GIB, shards=12, **more)


@pytest.mark.parametrize(
    ("found", "loading", "said"),
    [
        (report(read_bytes=5 * GIB, rate=2.0 * GIB), False, "reading ahead: 25 % of 20.0 GiB at 2.0 GiB/s"),
        (report(cached_bytes=5 * GIB), False, "reading ahead: 25 % of 20.0 GiB"),
        (report(Doing.PAUSED, why="memory is short"), False, "reading ahead is paused at 0 %: memory is short"),
        (report(Doing.FULL, ahead_bytes=8 * GIB), False, "8.0 GiB of 20.0 GiB read ahead, more does not fit"),
        (report(Doing.DONE, read_bytes=20 * GIB), False, "all 20.0 GiB of weights are in memory"),
        (report(Doing.DONE), True, ""),
        (report(met_bytes=100, hit_bytes=62), True, "62 % of the weights found in memory"),
        (report(Doing.FAILED, why="/m: I/O error"), True, "read-ahead failed: /m: I/O error"),
        (Report(Doing.OFF, "load.readahead is off"), False, ""),
    ],
)
def test_a_sentence_for_status(found, loading, said):
    assert words(found, loading=loading) == said
    assert from_line(to_line(found)) == found


def test_all_means_all():
    assert [percent(share) for share in (0, 0.4, 0.999, 1.0, 1.01)] == ["0 %", "40 %", "99 %", "100 %", "100 %"]


def test_what_the_history_keeps():
    assert figures(Report(why="off")) == {}
    found = figures(report(read_bytes=10 * GIB, reading_seconds=5.0, met_bytes=4, hit_bytes=3))
    assert found == {
        "checkpoint_bytes": 20 * GIB,
        "readahead_bytes": 10 * GIB,
        "readahead_hit": 0.75,
        "disk_bytes_per_second": 2 * GIB,
    }
    # A rate over a few megabytes says nothing of the disk.
    assert "disk_bytes_per_second" not in figures(report(read_bytes=1 << 20, reading_seconds=5.0))


def test_a_line_that_is_no_report_is_refused():
    for line in (b"{}", b"[]", b'{"doing": "dancing"}', b'{"doing": "off", "colour": 1}', b"x"):
        with pytest.raises(ValueError):
            from_line(line)
