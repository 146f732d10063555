"""What the kernel's lines and the counters prove, and what they do not."""

import pytest

from vllm_supervisor.core.causes import CauseClass
from vllm_supervisor.core.hardware import (
    OomLine,
    XidLine,
    fresh_xids,
    oom_cause,
    oom_counted,
    read_kernel,
    xid_cause,
    xid_is_ours,
)
from vllm_supervisor.core.xid import CATALOGUE, HARDWARE

LOST = "NVRM: Xid (PCI:0000:41:00): 79, pid=4890, name=VLLM::Worker_TP, GPU has fallen off the bus."
DBE = "NVRM: Xid (PCI:0000:81:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE)"
KILLED = "Out of memory: Killed process 7201 (VLLM::Worker_TP) total-vm:154203344kB, anon-rss:27110228kB"
MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=kimi.service,mems_allowed=0,"
    "oom_memcg=/system.slice/kimi.service,task_memcg=/system.slice/kimi.service,task=VLLM::Worker_TP,pid=7201,uid=991"
)


def test_lines_of_the_kernel_are_read():
    assert read_kernel(LOST) == XidLine("0000:41:00", 79, 4890)
    assert read_kernel(DBE) == XidLine("0000:81:00", 48, None)
    assert read_kernel(KILLED) == OomLine(7201, "VLLM::Worker_TP")
    assert read_kernel("Memory cgroup out of memory: Killed process 5 (python3) total-vm:1kB") == OomLine(5, "python3")
    assert read_kernel(MEMCG) == OomLine(7201, "VLLM::Worker_TP", "/system.slice/kimi.service")
    assert read_kernel("eth0: link up") is None
    assert read_kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module") is None


@pytest.mark.parametrize("xid", sorted(CATALOGUE))
def test_an_xid_is_a_fault_of_hardware_where_the_catalogue_says_so_and_nothing_else(xid):
    cause = xid_cause("0000:41:00", xid, "kernel: line")
    slug = CATALOGUE[xid].slug
    if slug in HARDWARE:
        assert cause is not None
        assert (cause.reason, cause.evidence) == (slug, "kernel: line")
        assert cause.cause_class is CauseClass.HARDWARE
        assert f"Xid {xid} on GPU 0000:41:00" in cause.summary
        assert cause.advice
    else:
        assert cause is None


def test_numbers_that_nobody_knows_prove_nothing():
    assert xid_cause("0", 9999, "x") is None


def test_an_xid_of_another_engine_is_not_ours():
    line = XidLine("0000:41:00", 79, 4890)
    assert xid_is_ours(line, {4890}, all_gpus=False)
    assert not xid_is_ours(line, {1}, all_gpus=True)
    nameless = XidLine("0000:41:00", 79, None)
    assert xid_is_ours(nameless, set(), all_gpus=True)
    assert not xid_is_ours(nameless, {4890}, all_gpus=False)


def test_a_kill_by_the_kernel_is_ours_by_pid_or_by_cgroup_never_by_name():
    line = OomLine(7201, "VLLM::Worker_TP")
    assert oom_cause(line, KILLED, {1, 2}, "") is None
    assert oom_cause(line, KILLED, {7201}, "").reason == "host-out-of-memory"
    inside = OomLine(7201, "cicc", "/system.slice/kimi.service")
    assert oom_cause(inside, MEMCG, set(), "/system.slice/kimi.service").evidence == MEMCG
    assert oom_cause(inside, MEMCG, set(), "/system.slice/kimi") is None
    assert oom_cause(inside, MEMCG, set(), "") is None


@pytest.mark.parametrize(
    ("before", "now", "proved"), [(0, 1, True), (3, 5, True), (2, 2, False), (None, 4, False), (1, None, False)]
)
def test_the_counter_proves_a_kill_only_when_it_has_grown(before, now, proved):
    cause = oom_counted(before, now)
    assert (cause is not None) is proved
    if cause is not None:
        assert cause.reason == "host-out-of-memory"
        assert f"{before} -> {now}" in cause.evidence


def test_only_what_is_new_among_xid_counts():
    assert fresh_xids({("a", 13): 1}, {("a", 13): 3, ("a", 79): 1, ("b", 13): 1}) == [
        (("a", 13), 2),
        (("a", 79), 1),
        (("b", 13), 1),
    ]
    assert fresh_xids({("a", 13): 1}, {("a", 13): 1}) == []
