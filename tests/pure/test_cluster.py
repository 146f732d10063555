"""The decisions of a head and of the others, one by one."""

from dataclasses import replace

from vllm_supervisor.core.causes import Cause, CauseClass
from vllm_supervisor.core.cluster import head as heads
from vllm_supervisor.core.cluster import secondary as others
from vllm_supervisor.core.cluster.compare import difference, prints
from vllm_supervisor.core.cluster.messages import SILENT_S, Report

DIED = Cause("worker-killed", summary="a worker is gone")


def report(start="b", count=1, rank=1, **more):
    return Report(rank, start, count, **more)


def together():
    head = heads.heard(heads.Head(2, "a"), report(), 0.0)
    head, word = heads.word(head)
    node = others.heard(others.Secondary(1, 2, "b"), word, 0.0)
    return head, node


def test_nobody_launches_before_everybody_is_there():
    head, node = heads.Head(3, "a"), others.Secondary(1, 3, "b")
    assert head.missing() == (1, 2)
    head = heads.heard(head, report(), 0.0)
    assert head.missing() == (2,)
    assert not head.may_launch
    head, word = heads.word(head)
    assert not others.heard(node, word, 0.0).may_launch


def test_everybody_there_launches():
    head, node = together()
    assert head.may_launch
    assert node.may_launch
    assert node.epoch == "a"


def test_a_stranger_and_an_old_message_change_nothing():
    head, node = together()
    for said in (report(rank=0), report(rank=2), report(rank=-1), report(count=1, fault=DIED)):
        assert heads.heard(head, said, 1.0) is head
    _, old = heads.word(replace(head, count=0, fate=DIED))
    assert others.heard(node, old, 1.0) is node


def test_a_node_that_still_ends_an_earlier_start_is_waited_for():
    head = heads.heard(heads.Head(2, "a"), report(epoch="before"), 0.0)
    assert head.missing() == (1,)
    assert heads.heard(head, report("c"), 1.0).may_launch


def test_a_node_that_fell_silent_before_the_start_is_waited_for_again():
    head = heads.tick(heads.heard(heads.Head(3, "a"), report(), 0.0), SILENT_S + 0.1)
    assert head.missing() == (1, 2)


def test_a_late_message_of_a_former_start_does_not_end_the_new_one():
    head = heads.heard(heads.heard(heads.Head(2, "a"), report("b", 9, epoch="x"), 0.0), report("c"), 1.0)
    assert heads.heard(head, report("b", 10, epoch="x", fault=DIED), 2.0) is head


def test_a_node_that_never_hears_the_head_is_lost():
    head, _ = together()
    for second in range(1, 8):
        head = heads.tick(heads.heard(head, report(count=second + 1), float(second)), float(second))
    assert head.fate is not None
    assert head.fate.summary == "node 2 of 2 does not hear the head"


def test_the_first_fault_stays():
    head, _ = together()
    head = heads.failed(head, DIED)
    assert heads.failed(head, Cause("engine-hung")).fate is DIED


def test_a_secondary_waits_a_moment_for_the_word_of_the_head():
    _, node = together()
    node = others.failed(node, DIED, 1.0)
    assert node.fate is None
    assert not node.may_launch
    assert others.tick(node, 1.0 + others.FATE_S).fate is DIED


def test_a_secondary_before_its_admission_fails_alone():
    assert others.failed(others.Secondary(1, 2, "b"), DIED, 0.0).fate is DIED


def test_ready_is_what_the_head_says_while_everybody_is_up():
    head, node = together()
    assert not heads.became_ready(head).ready
    head = heads.became_ready(heads.heard(head, report(count=2, epoch="a", up=True), 1.0))
    head, word = heads.word(head)
    assert others.heard(node, word, 1.0).ready
    head, word = heads.word(heads.failed(head, DIED))
    node = others.heard(node, word, 2.0)
    assert not node.ready
    assert node.fate is DIED


def test_a_message_after_the_end_changes_no_fate():
    head, node = together()
    node = others.heard(node, heads.word(heads.failed(head, DIED))[1], 1.0)
    assert (
        others.heard(node, heads.word(heads.failed(replace(head, count=9), Cause("engine-hung")))[1], 2.0).fate is DIED
    )


def test_what_must_be_equal_is_compared_and_nothing_else():
    ours = prints(
        {"vllm": "0.32.0"},
        {"tensor_parallel_size": 2, "node-rank": 0, "trust-remote-code": True, "quiet": False},
        {"config.json": "ab"},
        {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "HOME": "/root"},
    )
    assert ours == {
        "version of vllm": "0.32.0",
        "--tensor-parallel-size": "2",
        "--trust-remote-code": "given",
        "checkpoint: config.json": "ab",
        "NCCL_P2P_DISABLE": "1",
    }
    assert difference(ours, {1: dict(ours)}, 2) is None
    other = {**ours, "checkpoint: config.json": "x" * 200}
    del other["NCCL_P2P_DISABLE"]
    found = difference(ours, {1: other}, 2)
    assert found is not None
    assert found.cause_class is CauseClass.PERMANENT
    assert "NCCL_P2P_DISABLE is not set on node 2 of 2 and 1 on the head" in found.summary
    assert len(found.summary) < 300


def test_many_differences_are_counted():
    found = difference({str(n): "a" for n in range(9)}, {1: {}}, 2)
    assert found is not None
    assert found.summary.endswith("; and 6 more")


def test_two_machines_of_one_rank_are_named():
    head = heads.heard(heads.Head(3, "a"), report("b", host="alpha"), 0.0)
    again = heads.heard(head, report("c", host="alpha"), 1.0)
    assert again.fate is None
    twice = heads.heard(head, report("c", host="beta"), 1.0)
    assert twice.fate.reason == "configuration-invalid"
    assert twice.fate.summary == "two machines say that they are node 2 of 3: alpha and beta"
    # A machine that was replaced is another matter: the old one is silent, or has said that it ends.
    assert heads.heard(head, report("c", host="beta"), SILENT_S + 1).fate is None
    ended = heads.heard(head, report("b", count=2, host="alpha", fault=DIED), 0.5)
    assert heads.heard(ended, report("c", host="beta"), 1.0).fate is None
