"""The history is never a reason not to start, and a kill in the middle of a write costs nothing before it."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys

import pytest

from vllm_supervisor.adapters.history import History
from vllm_supervisor.core.phases import Phase

BEGIN = {"began_at": 1000.0, "boot_id": "b", "config_hash": "h", "version": "1", "attempt": 1}

WRITER = """
import sys
from pathlib import Path
from vllm_supervisor.adapters.history import History
history = History(Path(sys.argv[1]))
for number in range(100000):
    history.begin(began_at=float(number), boot_id="b", config_hash="h", version="1", attempt=1)
    history.update(outcome="ready", ready_at=number + 1.0, phases={"compiling": 1.0})
    history.count("starts", "ready")
    print(number, flush=True)
"""


@pytest.fixture
def opened():
    """Opens histories and closes them."""
    made = []

    def make(*args, **more):
        made.append(History(*args, **more))
        return made[-1]

    yield make
    for history in made:
        history.close()


def test_a_start_is_remembered_as_it_was_told(tmp_path, opened):
    history = opened(tmp_path / "h.sqlite")
    history.begin(**BEGIN)
    history.update(phases={"loading-weights": 523.2, "verifying": 1.5})
    history.update(ready_at=1600.0, outcome="ready", gaps={"loading-weights": 4.5}, figures={"weights_gib": 70.81})
    assert history.past() == [], "the present start is no past"
    history.close()

    later = opened(tmp_path / "h.sqlite")
    (past,) = later.past()
    assert (past.began_at, past.ready_at, past.outcome, past.exit_code) == (1000.0, 1600.0, "ready", None)
    assert past.phases == {Phase.LOADING_WEIGHTS: 523.2, Phase.VERIFYING: 1.5}
    assert past.gaps == {Phase.LOADING_WEIGHTS: 4.5}
    assert later.rows()[0]["figures"] == {"weights_gib": 70.81}
    assert later.trouble == ""


def test_old_starts_go_and_the_totals_stay(tmp_path, opened):
    history = opened(tmp_path / "h.sqlite", keep=10)
    for _ in range(25):
        history.begin(**BEGIN)
        history.count("starts", "failed")
    assert len(history.rows(1000)) == 10
    assert history.totals("starts") == {"failed": 25}
    assert history.totals("failures") == {}


def test_a_column_that_does_not_exist_is_a_bug(opened):
    history = opened(None)
    history.begin(**BEGIN)
    with pytest.raises(KeyError, match="no such column: phase_times"):
        history.update(phase_times={})


@pytest.mark.parametrize("content", [b"this is no database", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_corrupt_file_is_set_aside_and_named(tmp_path, opened, content):
    path = tmp_path / "h.sqlite"
    path.write_bytes(content)
    history = opened(path)
    (aside,) = tmp_path.glob("h.sqlite.corrupt-*")
    assert aside.read_bytes() == content, "the evidence is kept"
    assert "was corrupt" in history.trouble
    assert aside.name in history.trouble
    history.begin(**BEGIN)
    history.close()
    assert len(opened(path).rows()) == 1, "and a new file serves"


def test_a_file_that_was_cut_in_the_middle_is_set_aside(tmp_path, opened):
    path = tmp_path / "h.sqlite"
    history = opened(path)
    for _ in range(300):
        history.begin(**BEGIN)
    history.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 + 100)
    again = opened(path)
    assert "corrupt" in again.trouble
    again.begin(**BEGIN)
    assert len(again.rows()) == 1


def test_a_full_disk_is_trouble_and_no_exception(tmp_path, opened):
    history = opened(tmp_path / "h.sqlite")
    history.begin(**BEGIN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writes beyond this size fail as on a full disk; Python ignores SIGXFSZ.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        history.update(sentence="x" * 100_000)
        history.count("starts", "failed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in history.trouble
    history.update(sentence="there is room again")
    assert history.rows()[0]["sentence"] == "there is room again"


def test_a_disk_that_is_full_from_the_beginning(tmp_path, opened):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        history = opened(tmp_path / "h.sqlite")
        history.begin(**BEGIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "this start is not remembered" in history.trouble


def test_a_kill_in_the_middle_of_writes_loses_nothing_that_was_written(tmp_path, opened):
    path = tmp_path / "h.sqlite"
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        for line in child.stdout:
            if int(line) >= 20:
                break
        child.kill()
        rest = child.stdout.read().split()
        child.wait(10)
        child.stdout.close()
        last = int(rest[-1]) if rest else 20
        history = opened(path)
        assert history.trouble == ""
        found = [row["began_at"] for row in history.rows(100_000)]
        assert found[-1] >= last
        history.close()


def test_a_directory_that_may_not_be_written_leaves_the_daemon_without_a_history(tmp_path, opened):
    folder = tmp_path / "state"
    folder.mkdir()
    history = opened(folder / "no" / "h.sqlite")
    assert "cannot be used" in history.trouble
    assert "this start is not remembered" in history.trouble
    history.begin(**BEGIN)
    history.update(outcome="ready")
    assert len(history.rows()) == 1, "it is remembered as long as it runs"


def test_two_at_once_the_command_line_reads_while_the_daemon_writes(tmp_path, opened):
    path = tmp_path / "h.sqlite"
    history = opened(path)
    history.begin(**BEGIN)
    reader = opened(path, read_only=True)
    history.update(outcome="ready")
    assert reader.rows()[0]["outcome"] == "ready"
    reader.begin(**BEGIN)
    assert "cannot be written" in reader.trouble, "it cannot write"
    locked = sqlite3.connect(path, isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    assert len(reader.rows()) == 1
    locked.execute("ROLLBACK")
    locked.close()


def test_a_history_that_is_not_there_yet_reads_as_empty(tmp_path, opened):
    history = opened(tmp_path / "none.sqlite", read_only=True)
    assert history.rows() == []
    assert "cannot be used" in history.trouble
    assert not (tmp_path / "none.sqlite").exists()
