"""Stacks of real processes: by SIGABRT, and by a py-spy that a test writes."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from vllm_supervisor.adapters.stacks import as_text, by_abort, by_py_spy, find_py_spy

HANGS = "import time\ndef waits_for_ever():\n    print('up', flush=True)\n    time.sleep(600)\nwaits_for_ever()\n"


@contextmanager
def hung(number=1):
    """Python processes that hang in `waits_for_ever`, and what they have printed since it was asked last."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-c", HANGS]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, env=environment) for _ in range(number)
    ]
    os.close(writing)
    for process in processes:
        assert process.stdout.readline() == b"up\n"

    def listen():
        try:
            return os.read(reading, 1 << 16).decode().splitlines()
        except BlockingIOError:
            return []

    try:
        yield processes, listen
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=10)
        os.close(reading)


@pytest.fixture(autouse=True)
def _no_core(tmp_path):
    import resource

    old = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, old)


def test_each_interpreter_prints_its_own_stacks_also_a_stopped_one():
    with hung(2) as (processes, listen):
        first, second = (process.pid for process in processes)
        os.kill(second, signal.SIGSTOP)
        found = by_abort([first, second], listen)
        assert sorted(found) == sorted([first, second])
        for text in found.values():
            assert text.count("waits_for_ever") == 1
            assert "most recent call first" in text
        for process in processes:
            assert process.wait(10) == -signal.SIGABRT
    shown = as_text(found, {first: "Worker_TP0"})
    assert f"=== Worker_TP0 (pid {first})" in shown
    assert f"=== process (pid {second})" in shown


def test_processes_that_are_gone_have_no_stacks():
    with hung() as (processes, listen):
        processes[0].kill()
        processes[0].wait(10)
        assert by_abort([processes[0].pid], listen) == {}


def test_py_spy_is_asked_without_stopping_the_process_and_may_be_refused(tmp_path):
    tool = tmp_path / "py-spy"
    tool.write_text(
        "#!/bin/sh\n[ \"$1 $2 $3\" = 'dump --nonblocking --pid' ] || exit 2\n"
        "[ $4 = 111 ] && { echo 'Permission Denied' >&2; exit 1; }\necho \"Thread of $4\"\n"
    )
    tool.chmod(0o755)
    assert by_py_spy(str(tool), [111, 222]) == {222: "Thread of 222"}
    assert find_py_spy(str(tmp_path / "vllm"), "") == str(tool)
    assert find_py_spy("/nothing/vllm", str(tmp_path)) == str(tool)
    assert find_py_spy("/nothing/vllm", "/nothing") is None


def test_a_py_spy_that_hangs_is_left(tmp_path):
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    assert by_py_spy(str(tool), [1, 2], limit_s=0.2) == {}
