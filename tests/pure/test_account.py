"""Where the time of a start went, and what the disk has to do with it."""

import pytest

from vllm_supervisor.core.account import account, brief, disk_seconds, known_rate, of_history

GIB = 1 << 30
PHASES = {
    "preflight": 1.0,
    "launching": 10.0,
    "configuring": 5.0,
    "connecting": 5.0,
    "loading-weights": 60.0,
    "compiling": 30.0,
    "ready": 900.0,
}
DISK = {"checkpoint_bytes": 60 * GIB, "readahead_bytes": 60 * GIB, "disk_bytes_per_second": 1 * GIB}


def test_the_longest_phases_come_first_with_what_is_usual():
    (said,) = account(PHASES, {"compiling": 28.0}, {})
    assert said == (
        "1 min 51 s: loading-weights 1 min, compiling 30 s (usually 28 s), launching 10 s, everything else 11 s."
    )
    assert account({}, {}, DISK) == account({"ready": 3.0}, {}, DISK) == []
    assert account({"launching": 2.0}, {}, {}) == ["2.0 s: launching 2.0 s."]


def test_waiting_is_a_part_of_what_a_start_takes():
    (said,) = account({"waiting": 600.0, "launching": 10.0}, {}, {})
    assert said == "10 min 10 s: waiting 10 min, launching 10 s."
    assert brief({"waiting": 600.0, "launching": 10.0}, {}) == "most of it waiting, 10 min"


@pytest.mark.parametrize(
    ("more", "phases", "said"),
    [
        ({"readahead_hit": 0.97}, {}, "a faster disk would gain nothing"),
        # 60 s of reading, 20 s of imports: the weights wait for the disk until it is through.
        ({"readahead_hit": 0.4}, {}, "one twice as fast would save up to 30 s"),
        ({"readahead_hit": 0.4}, {"launching": 30.0}, "one twice as fast would save up to 20 s"),
        ({"readahead_hit": 0.4, "disk_bytes_per_second": 6 * GIB}, {}, "40 % of it was in memory in time"),
        ({"disk_bytes_per_second": 6 * GIB}, {}, "not all of it was in memory in time"),
        ({"readahead_hit": 0.4, "disk_bytes_per_second": 6 * GIB}, {"loading-weights": 9.0}, "(6.0 GiB/s)."),
    ],
)
def test_what_another_disk_would_gain(more, phases, said):
    found = account({**PHASES, **phases}, {}, {**DISK, **more})
    assert said in found[1]
    assert found[1].startswith(("The disk needs 1 min for 60.0 GiB (1.0 GiB/s)", "The disk needs 10 s for 60.0 GiB"))


def test_without_a_reading_ahead_there_is_only_the_limit():
    figures = {"checkpoint_bytes": 60 * GIB}
    assert account(PHASES, {}, figures, 2.0 * GIB)[1] == "The disk needs 30 s for 60.0 GiB (2.0 GiB/s)."
    assert len(account(PHASES, {}, figures)) == 1
    assert disk_seconds({}, 1.0) is None


def test_a_line_with_little_room():
    assert brief(PHASES, DISK) == "most of it loading-weights, 1 min (the disk needs 1 min)"
    assert brief(PHASES, {}) == "most of it loading-weights, 1 min"
    assert brief({**PHASES, "compiling": 99.0}, DISK) == "most of it compiling, 1 min 39 s"
    assert brief({}, DISK) == ""


def row(number, ready=True, config="a", **figures):
    phases = {"launching": 10.0, "loading-weights": 10.0 * number}
    return {"ready_at": 1.0 if ready else None, "config_hash": config, "phases": phases, "figures": figures}


def test_the_history_tells_the_newest_start_that_became_ready():
    rows = [
        row(1, disk_bytes_per_second=GIB),
        row(9, config="b"),
        row(2, checkpoint_bytes=4 * GIB),
        row(5, ready=False),
    ]
    assert known_rate(rows) == GIB
    assert of_history(rows, 2) == [
        "The last start that became ready took 30 s: loading-weights 20 s (usually 10 s), launching 10 s (usually 10 s).",
        "The disk needs 4.0 s for 4.0 GiB (1.0 GiB/s).",
    ]
    assert of_history(rows, 1) == []
    assert of_history([], 5) == []
    assert known_rate([row(1), {"figures": None}]) is None
