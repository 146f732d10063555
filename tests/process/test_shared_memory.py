"""What a killed engine leaves in /dev/shm is found by what its processes had mapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from vllm_supervisor.adapters import shared_memory

HOLDER = """
import multiprocessing, multiprocessing.shared_memory as shm, sys
context = multiprocessing.get_context("spawn")
semaphore = context.Semaphore()
segment = shm.SharedMemory(create=True, size=4096)
print(semaphore._semlock.name, segment.name, flush=True)
sys.stdin.read()
"""


def test_segments_and_semaphores_of_a_killed_process_are_removed():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        semaphore, segment = process.stdout.readline().split()
        files = {f"/dev/shm/sem.{semaphore.lstrip('/')}", f"/dev/shm/{segment}"}
        seen = shared_memory.mapped([process.pid])
        assert files <= seen
        assert shared_memory.remove(seen) == ()
        # Python's own helper cleans up after a process that dies alone; a killed engine's dies with it.
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            subprocess.run(["kill", "-9", child], check=True)
    finally:
        process.kill()
        process.communicate()
    assert all(Path(file).exists() for file in files)
    assert files <= set(shared_memory.remove(seen))
    assert not any(Path(file).exists() for file in files)


def test_a_dev_shm_of_somebody_else_holds_other_files_of_the_same_names(tmp_path):
    """A service with a /dev/shm of its own may have the same inode number, and the same name, there."""
    ours = Path(f"/dev/shm/vsup-test-{os.getpid()}")
    ours.write_text("x")
    try:
        stat = ours.stat()
        here = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}"
        for pid, device in ((1, "00:00"), (2, here)):
            (tmp_path / f"{pid}").mkdir()
            line = f"7f00-7f01 rw-s 00000000 {device} {stat.st_ino}   /dev/shm/sem.gone (deleted)\n"
            (tmp_path / f"{pid}/maps").write_text(line)
        assert shared_memory.mapped([1], tmp_path) == set()
        assert shared_memory.mapped([2], tmp_path) == {str(ours), "/dev/shm/sem.gone"}
    finally:
        ours.unlink()
