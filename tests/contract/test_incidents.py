"""The directory of incidents on a real disk: written, rotated, packed; and on one that is full."""

import io
import os
import resource
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from vllm_supervisor.adapters.incidents import Incidents, pack

SOURCE = Path(__file__).parents[2] / "supervisor"
AT = 1_790_000_000.0


@pytest.fixture
def incidents(tmp_path):
    return Incidents(tmp_path / "incidents", keep=3, max_mib=1)


def test_files_lie_in_a_directory_named_by_time_and_reason(incidents):
    done = incidents.write(AT, "worker-killed", [("verdict.json", "{}\n"), ("output/main.log", "ü\n")])
    assert done.trouble == ""
    assert done.path.name == "20260921T141320Z-worker-killed"
    assert (done.path / "output/main.log").read_text() == "ü\n"
    assert done.path.stat().st_mode & 0o777 == 0o750
    assert not [path for path in done.path.rglob("*") if path.name.endswith(".part")]


def test_the_same_reason_in_the_same_second_gets_a_name_of_its_own(incidents):
    names = [incidents.write(AT, "unknown", [("a", "1")]).path.name for _ in range(2)]
    assert len(set(names)) == 2
    assert sorted(names) == names == [one.name for one in incidents.all()]


def test_the_oldest_make_room_by_count_and_by_size(incidents):
    for second in range(5):
        incidents.write(AT + second, "unknown", [("a", "1")])
    assert [one.name[13:16] for one in incidents.all()] == ["22Z", "23Z", "24Z"]
    for second in range(5, 8):
        assert incidents.write(AT + second, "unknown", [("a", "x" * (600 << 10))]).path
    kept = incidents.all()
    assert sum(one.size for one in kept) <= 1 << 20
    assert kept[-1].name[13:16] == "27Z"


def test_what_is_not_an_incident_is_never_touched(incidents):
    incidents.root.mkdir()
    notes = incidents.root / "notes"
    notes.mkdir()
    outside = incidents.root.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (incidents.root / "20200101T000000Z-unknown").symlink_to(outside)
    for second in range(6):
        incidents.write(AT + second, "unknown", [("a", "1")])
    assert len(incidents.all()) == 3
    assert notes.is_dir()
    assert (outside / "precious").exists()


def test_none_is_kept_when_none_is_wanted(tmp_path):
    assert Incidents(tmp_path / "incidents", keep=0).write(AT, "unknown", [("a", "1")]).path is None
    assert not (tmp_path / "incidents").exists()


def test_more_than_the_limit_is_left_out_and_said(tmp_path):
    done = Incidents(tmp_path, max_mib=1).write(AT, "unknown", [("a", "1"), ("b", "x" * (2 << 20)), ("c", "2")])
    assert sorted(path.name for path in done.path.iterdir()) == ["a", "c"]
    assert "lacks b" in done.trouble


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = Incidents(tmp_path / "file" / "incidents").write(AT, "unknown", [("a", "1")])
    assert done.path is None
    assert "cannot be saved" in done.trouble


FULL = """
import resource, signal, sys
from pathlib import Path
from vllm_supervisor.adapters.incidents import Incidents
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
files = [("verdict.json", "v" * 500), ("big", "x" * 100_000), ("small", "s" * 100)]
done = Incidents(Path(sys.argv[1])).write(1_790_000_000.0, "disk-full", files)
print(done.path, "|", done.trouble)
"""


@pytest.mark.parametrize(("room", "there"), [(1000, ["small", "verdict.json"]), (50, [])])
def test_a_disk_that_takes_no_more_costs_the_rest_and_nothing_else(tmp_path, room, there):
    """The kernel refuses to let any file grow beyond `room` bytes, as a full disk does."""
    assert resource.RLIMIT_FSIZE
    assert signal.SIGXFSZ
    root = tmp_path / "incidents"
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(root), str(room)],
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    path, _, trouble = ran.stdout.partition(" | ")
    found = sorted(each.name for one in root.iterdir() for each in one.iterdir())
    assert found == there
    assert "File too large" in trouble
    assert (path == "None") is not bool(there)


def test_one_archive_holds_them_all(incidents):
    for second in range(2):
        incidents.write(AT + second, "unknown", [("verdict.json", f"{second}"), ("output/main.log", "x\n")])
    target = io.BytesIO()
    assert pack(incidents.all(), target) == 4
    with tarfile.open(fileobj=io.BytesIO(target.getvalue()), mode="r:gz") as tar:
        members = tar.getmembers()
        names = [member.name for member in members]
        assert names[:2] == ["20260921T141320Z-unknown/verdict.json", "20260921T141320Z-unknown/output/main.log"]
        assert all(member.isfile() and member.uid == 0 for member in members)
        assert tar.extractfile(names[2]).read() == b"1"
