"""One supervisor an instance."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vllm_supervisor.adapters.lock import InstanceLock, acquire

HOLD = """
import sys
from pathlib import Path
from vllm_supervisor.adapters.lock import acquire
lock = acquire(Path(sys.argv[1]))
print(lock if isinstance(lock, int) else "held", flush=True)
sys.stdin.read()
"""


def holder(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return child, child.stdout.readline().strip()


def end(child):
    child.stdin.close()
    child.wait(10)
    child.stdout.close()


def test_the_second_one_learns_the_pid_of_the_first(tmp_path):
    child, said = holder(tmp_path / "lock")
    try:
        assert said == "held"
        assert acquire(tmp_path / "lock") == child.pid
    finally:
        end(child)


def test_the_lock_ends_with_its_process_even_when_it_is_killed(tmp_path):
    child, said = holder(tmp_path / "lock")
    assert said == "held"
    child.kill()
    end(child)
    lock = acquire(tmp_path / "lock")
    assert isinstance(lock, InstanceLock), "the file of a dead process is no lock"
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()
    child, said = holder(tmp_path / "lock")
    assert said == "held"
    end(child)


def test_the_engine_does_not_inherit_the_lock(tmp_path):
    lock = acquire(tmp_path / "lock")
    assert isinstance(lock, InstanceLock)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        again = acquire(tmp_path / "lock")
        assert isinstance(again, InstanceLock)
        again.release()
    finally:
        child.kill()
        child.wait(10)


def test_a_holder_that_does_not_say_its_pid_is_0(tmp_path):
    child, said = holder(tmp_path / "lock")
    try:
        assert said == "held"
        (tmp_path / "lock").write_text("")
        assert acquire(tmp_path / "lock") == 0
    finally:
        end(child)


def test_a_place_that_cannot_be_used_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        acquire(tmp_path / "file" / "lock")
