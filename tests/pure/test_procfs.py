"""The kernel's files about one process, as Linux 6 wrote them."""

from __future__ import annotations

import pytest

from vllm_supervisor.core import procfs

STAT = (
    "4711 (VLLM::Worker) (a b) S 4700 4700 4700 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 12 0 1000 8192000 321 "
    "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
IO = "rchar: 9000\nwchar: 1\nsyscr: 2\nsyscw: 3\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"


def test_a_name_with_parentheses_and_blanks_moves_no_field() -> None:
    assert procfs.used(STAT, 100) == (3.0, 321)


@pytest.mark.parametrize(("text", "waited"), [("1500000000 2500000000 77\n", 2.5), ("", 0.0), ("0\n", 0.0)])
def test_the_wait_for_a_processor_is_the_second_figure_in_nanoseconds(text: str, waited: float) -> None:
    assert procfs.waited_s(text) == waited


def test_of_what_was_read_the_larger_figure_counts() -> None:
    assert procfs.read_bytes(IO) == 9000
    assert procfs.read_bytes(IO.replace("read_bytes: 4096", "read_bytes: 10000")) == 10000


def test_a_file_that_may_not_be_read_counts_nothing() -> None:
    assert procfs.read_bytes("") == 0
