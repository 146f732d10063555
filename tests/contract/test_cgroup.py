"""The counter of OOM kills, from files that look as the kernel's do."""

import os

import pytest

from vllm_supervisor.adapters.cgroup import OomCounter, of_our_unit

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
UNIT = "system.slice/kimi.service"


def tree(folder, membership, place, text):
    proc = folder / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(membership)
    path = folder / "cgroup" / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return OomCounter(proc=folder / "proc", root=folder / "cgroup"), path


@pytest.mark.parametrize(
    ("membership", "place", "form"),
    [
        (f"0::/{UNIT}\n", f"{UNIT}/memory.events", EVENTS),
        (f"0::/{UNIT}/engine\n", f"{UNIT}/memory.events", EVENTS),
        (f"9:cpu:/x\n4:memory:/{UNIT}\n0::/{UNIT}\n", f"memory/{UNIT}/memory.oom_control", CONTROL),
        (f"0::/{UNIT}\n1:name=systemd:/{UNIT}\n", f"unified/{UNIT}/memory.events", EVENTS),
    ],
    ids=["v2", "v2 below", "v1", "hybrid"],
)
def test_the_units_counter_is_found_and_read_anew(tmp_path, membership, place, form):
    counter, path = tree(tmp_path, membership, place, form.format(2))
    assert counter.cgroup == f"/{UNIT}"
    assert counter.read() == 2
    path.write_text(form.format(3))
    assert counter.read() == 3
    path.unlink()
    assert counter.read() is None


@pytest.mark.parametrize(
    "membership",
    ["0::/user.slice/user-0.slice/session-1.scope\n", "0::/\n", "", "0::/user.slice/user@0.service/app.slice\n"],
)
def test_outside_of_a_service_there_is_no_counter(tmp_path, membership):
    counter, _ = tree(tmp_path, membership, "memory.events", EVENTS.format(2))
    assert counter.read() is None
    assert counter.cgroup == ""


def test_a_controller_that_is_not_there_counts_nothing(tmp_path):
    counter, _ = tree(tmp_path, f"0::/{UNIT}\n", f"{UNIT}/cgroup.procs", "")
    assert counter.read() is None


def test_only_the_main_process_of_a_unit_asks_its_cgroup():
    assert of_our_unit({}).read() is None
    assert of_our_unit({"SYSTEMD_EXEC_PID": str(os.getpid() + 1)}).cgroup == ""
