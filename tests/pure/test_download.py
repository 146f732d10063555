"""What a download still needs, whether it fits, in which order and how long it takes."""

import pytest

from vllm_supervisor.core.download import (
    LONGEST_WAIT_S,
    SPARE_BYTES,
    Listing,
    Meter,
    RemoteFile,
    Standing,
    lacking,
    order,
    read_listing,
    space_problem,
    standings,
    unsafe,
    wait_before,
)

FILES = (
    RemoteFile("b.safetensors", 100, "ab"),
    RemoteFile("config.json", 5, "", "cd"),
    RemoteFile("a.safetensors", 100, "ef"),
)
LISTING = Listing("maker/model", "0" * 40, FILES)


def test_small_files_come_first_then_shards_by_name():
    assert [file.name for file in order({file.name for file in FILES}, LISTING)] == [
        "config.json",
        "a.safetensors",
        "b.safetensors",
    ]


def test_each_file_stands_as_its_size_and_its_mark_say():
    found = standings(LISTING, {"b.safetensors": 100, "config.json": 4}, {"b.safetensors"})
    assert found == {
        "b.safetensors": Standing.WHOLE,
        "config.json": Standing.WRONG_SIZE,
        "a.safetensors": Standing.MISSING,
    }
    assert standings(LISTING, {"b.safetensors": 100}, ())["b.safetensors"] is Standing.UNVERIFIED


def test_what_is_begun_is_not_counted_again():
    assert lacking(FILES, {"b.safetensors": 60}) == 145
    assert lacking(FILES, {"b.safetensors": 600}) == 105


def test_a_disk_needs_what_is_lacking_and_some_to_spare():
    assert space_problem(100, SPARE_BYTES + 100, "/m") == ""
    assert space_problem(0, 0, "/m") == ""
    told = space_problem(540 << 30, 200 << 30, "/m")
    assert told.startswith("540.0 GiB are still to come and 200.0 GiB are free in /m: free 342.0 GiB")


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\b", "a//b"])
def test_a_name_that_leaves_the_directory_is_found(name):
    assert unsafe(Listing("m", "0", (RemoteFile(name, 1),))) == name
    assert unsafe(LISTING) == ""


def test_a_listing_survives_being_kept_and_rubbish_is_none():
    assert read_listing(LISTING.as_json()) == LISTING
    for rubbish in (None, {}, [], {"repo": "x", "commit": "y", "files": [[1]]}):
        assert read_listing(rubbish) is None


def test_waits_double_up_to_a_minute():
    assert [wait_before(tries, 1.0) for tries in (1, 2, 3, 99)] == [1.0, 2.0, 4.0, LONGEST_WAIT_S]


def test_a_meter_says_rate_and_rest_of_its_last_minute():
    meter = Meter(1000 << 20)
    assert meter.rate() is None
    meter.see(0.0, 0)
    meter.see(10.0, 100 << 20)
    assert meter.words() == "100.0 MiB of 1000.0 MiB (10 %), 10.0 MiB/s, about 1 min 30 s left"
    meter.see(20.0, 1000 << 20)
    assert meter.words() == "1000.0 MiB of 1000.0 MiB (100 %)", "nothing is left to wait for"
    meter = Meter(1000 << 20)
    for second in range(20, 120, 10):
        meter.see(float(second), 100 << 20)
    assert meter.rate() == 0
    assert "left" not in meter.words()
