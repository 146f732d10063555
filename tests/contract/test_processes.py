"""Seeing, ending and reaping what is ours, and nothing that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from process.waiting import wait_until
from vllm_supervisor.adapters.processes import Processes
from vllm_supervisor.core.events import Role
from vllm_supervisor.core.ownership import START_ID

# Run in a process of its own, because a subreaper adopts orphans and the tests' process must not.
SCENE = """
import os, signal, subprocess, sys, time
from vllm_supervisor.adapters.processes import Processes, become_subreaper, reap

assert become_subreaper()
processes = Processes("start-1")
env = {**os.environ, "VSUP_START_ID": "start-1", "SPT_NOENV": "1"}
child = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("forked", flush=True)
time.sleep(600)
'''], env=env, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "forked\\n"
until = time.monotonic() + 10
while len(processes.ours()) != 2 and time.monotonic() < until:
    pass
ours = {each.pid for each in processes.ours()}
assert child.pid in ours and len(ours) == 2, ours
assert {each.pid for each in processes.descendants()} == ours, "the orphan became ours"
child.kill()
child.wait()
orphan = (ours - {child.pid}).pop()
assert [each.pid for each in processes.ours()] == [orphan]
processes.helpers.add(orphan)
assert processes.ours() == () and processes.kill() == ()
processes.helpers.clear()
print(*processes.kill())
while os.path.exists(f"/proc/{orphan}/stat") and open(f"/proc/{orphan}/stat").read().rpartition(")")[2].split()[0] != "Z":
    assert time.monotonic() < until
assert processes.ours() == (), "a zombie holds nothing"
assert reap(None, {orphan}) == ()
assert reap(orphan) == ()
assert reap(None) == (orphan,)
assert reap(None) == ()
"""


def python(code, **env):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )  # fmt: skip


@pytest.fixture
def sleeper():
    """Starts processes that tell a line and sleep; they are gone afterwards."""
    made = []

    def start(code="", **env):
        child = python(f"import sys, time\n{code}\nprint('here', flush=True)\ntime.sleep(600)", **env)
        made.append(child)
        assert child.stdout.readline() == "here\n"
        return child

    yield start
    for child in made:
        child.kill()
        child.wait(10)
        child.stdin.close()
        child.stdout.close()


def test_an_orphan_in_a_session_of_its_own_is_seen_killed_and_reaped():
    done = python(SCENE)
    out, _ = done.communicate(timeout=30)
    assert done.returncode == 0
    assert out.startswith("pid ")


def test_only_the_mark_makes_a_stranger_ours(sleeper):
    # The tests' process plays a neighbour of the same user; its child is ours only by descent.
    marked = sleeper(**{START_ID: "start-2"})
    found = {each.pid for each in Processes("start-2").ours()}
    assert marked.pid in found
    neighbour = psutil.Process(os.getppid())
    assert neighbour.pid not in found
    assert os.getpid() not in found


def test_roles_come_from_titles_and_options_are_left_out(sleeper):
    title = "open('/proc/self/comm', 'w').write('VLLM::Worker_TP1')"
    worker = sleeper(title)
    keyed = subprocess.Popen(["sleep", "600"])
    main = python("import sys; sys.stdin.read()")
    try:
        roles = Processes("none").roles(main.pid)
        assert roles[worker.pid][0] is Role.WORKER
        assert roles[main.pid][0] is Role.API_SERVER
        # exec(2) is over before the kernel shows all the words of the new program.
        wait_until(lambda: Processes("none").roles(None)[keyed.pid] == (Role.OTHER, "sleep 600"), 30, "its words")
        assert " -c" not in roles[main.pid][1], "options may hold a key"
    finally:
        keyed.kill()
        keyed.wait(10)
        main.communicate(timeout=10)


def test_a_worker_that_is_a_child_of_somebody_else_is_looked_for_only_where_that_can_be(tmp_path):
    # As Ray's are: what began it has ended, and nobody of ours is its parent.
    said = tmp_path / "pid"
    begin = f"""
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
told = os.open({str(said)!r} + ".new", os.O_WRONLY | os.O_CREAT)
os.write(told, str(os.getpid()).encode())
os.rename({str(said)!r} + ".new", {str(said)!r})
os.execv(sys.executable, ["ray::RayWorkerProc", "-c", "import time; time.sleep(600)"])
"""
    mark = f"elsewhere-{os.getpid()}"
    subprocess.run([sys.executable, "-c", begin], env={**os.environ, START_ID: mark}, check=True, timeout=30)
    wait_until(said.exists, 30, "its pid")
    pid = int(said.read_text())
    try:
        anywhere = Processes(mark, elsewhere=True)
        wait_until(lambda: anywhere.roles(None).get(pid) == (Role.WORKER, "ray::RayWorkerProc"), 30, "its role")
        assert pid not in Processes(mark).roles(None)
        assert pid not in Processes("another-mark", elsewhere=True).roles(None)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_usage_grows_with_reading_memory_and_work(sleeper, tmp_path):
    (tmp_path / "weights").write_bytes(bytes(8 << 20))
    code = f"""
print('here', flush=True)
sys.stdin.readline()
kept = bytearray(open({str(tmp_path / "weights")!r}, 'rb').read()) * 8
until = time.process_time() + 0.2
while time.process_time() < until: pass
"""
    child = python(f"import sys, time\n{code}\nprint('done', flush=True)\ntime.sleep(600)")
    try:
        assert child.stdout.readline() == "here\n"
        processes = Processes("none")
        as_worker = {child.pid: (Role.WORKER, "w")}
        before = processes.usage(as_worker)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "done\n"
        after = processes.usage(as_worker)
        assert after.read_bytes - before.read_bytes >= 8 << 20
        assert after.resident_bytes - before.resident_bytes >= 60 << 20
        assert after.worker_cpu_s >= 0.2
        assert after.compiler_cpu_s == 0
        assert processes.usage({child.pid: (Role.COMPILER, "nvcc")}).compiler_cpu_s >= 0.2
        gone = {2**22 - 3: (Role.WORKER, "gone")}
        assert processes.usage(gone).worker_cpu_s is None
    finally:
        child.kill()
        child.wait(10)
        child.stdin.close()
        child.stdout.close()


def test_a_worker_that_gets_no_processor_is_busy_and_a_stopped_one_is_not():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.nice(%d); print('here', flush=True)"
    worker, hog = (python(f"{code % nice}\nwhile True: pass") for nice in (19, 0))
    processes, as_worker = Processes("none"), {worker.pid: (Role.WORKER, "w")}

    def used(pid: int) -> float:
        return sum(psutil.Process(pid).cpu_times()[:2])

    def figure() -> float:
        return processes.usage(as_worker).worker_cpu_s

    try:
        assert [each.stdout.readline() for each in (worker, hog)] == ["here\n"] * 2
        began, ran = figure(), used(worker.pid)
        wait_until(
            lambda: figure() - began > max(1.0, 3 * (used(worker.pid) - ran)), 60, "it waits longer than it runs"
        )
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, 30, "it is stopped")
        before, until = figure(), used(hog.pid) + 0.5
        wait_until(lambda: used(hog.pid) >= until, 60, "the other one runs")
        assert figure() == before
    finally:
        for each in (worker, hog):
            each.kill()
            each.communicate(timeout=10)


def test_a_look_at_all_processes_takes_no_time_to_speak_of():
    processes = Processes("none")
    processes.descendants()
    began = time.process_time()
    for _ in range(5):
        processes.descendants()
    count = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    assert (time.process_time() - began) / 5 < 0.0005 * count
