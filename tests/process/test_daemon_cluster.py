"""Several nodes of one model: they begin together, all are ready when the head is, and they share one fate."""

import os
import signal

import pytest

from process.cluster_tools import again_ready, all_ready, arguments, cluster, ended_alike, main_of, waits_for
from process.daemon_tools import marked, rows, samples, told, until_ready, value
from process.fakes import kill_marked
from process.waiting import wait_until


@pytest.fixture
def node(tmp_path):
    """Starts one of two nodes."""
    with cluster(tmp_path) as start:
        yield start


@pytest.mark.parametrize("first", [0, 1])
def test_nobody_loads_before_all_are_there_and_all_are_ready_together(node, first):
    early = node(first)
    waits_for(early, f"node {2 - first} of 2")
    assert marked(early) == []
    late = node(1 - first)
    until_ready(early)
    until_ready(late)
    head, second = (early, late) if first == 0 else (late, early)
    said = {one: arguments(main_of(one)) for one in (head, second)}
    assert "--headless" not in said[head]
    assert "--headless" in said[second]
    assert said[second][said[second].index("--node-rank") + 1] == "1"
    for one in (head, second):
        assert said[one][said[one].index("--nnodes") + 1] == "2"
        assert [row["outcome"] for row in rows(one)] == ["ready"]
        nodes = one.status()["cluster"]["nodes"]
        assert [(row["rank"], row["here"]) for row in nodes] == [(0, one is head), (1, one is second)]
    for one in (head, second):
        one.wait(lambda one=one: _phases(one) == ["ready", "ready"], "both to be seen as ready")


def _phases(daemon):
    return [row["phase"] for row in daemon.status()["cluster"]["nodes"]]


def _up(daemon):
    page = samples(daemon.get("/metrics").text)
    return [value(page, "vllm_supervisor_cluster_node_up", rank=str(rank)) for rank in range(3)]


def test_three_nodes_name_the_missing_one_and_the_death_of_one_engine_ends_all(tmp_path):
    with cluster(tmp_path, 3) as node:
        head, third = node(0), node(2)
        for one in (head, third):
            waits_for(one, "node 2 of 3")
        head.wait(lambda: _phases(head) == ["waiting", "missing", "waiting"], "the missing node on the page")
        assert _up(head) == [1.0, 0.0, 1.0]
        nodes = [head, node(1), third]
        for one in nodes:
            until_ready(one)
        head.wait(lambda: _up(head) == [1.0, 1.0, 1.0], "all nodes in the metrics")
        page = samples(head.get("/metrics").text)
        assert value(page, "vllm_supervisor_cluster_node_phase", rank="2", phase="ready") == 1.0
        assert value(samples(third.get("/metrics").text), "vllm_supervisor_cluster_rank") == 2.0
        assert _up(third) == [None] * 3
        os.kill(main_of(third), signal.SIGKILL)
        ended_alike("engine-died", *nodes)
        for one in nodes:
            assert "engine-died: node 3 of 3: the engine ended while it was serving" in one.log()


def test_the_death_of_the_head_s_engine_ends_both_with_its_cause(node):
    head, second = all_ready(node)
    os.kill(main_of(head), signal.SIGKILL)
    ended_alike("engine-died", head, second)
    assert "engine-died: node 1 of 2: the engine ended while it was serving" in second.log()


def test_a_difference_is_named_before_anything_loads(node):
    head, second = node(0), node(1, engine={"args": {"max-model-len": 4096}})
    for one in (head, second):
        assert one.wait_exit() == 78
        assert rows(one)[-1]["reason"] == "node-differs"
        assert "--max-model-len is 4096 on node 2 of 2 and not set on the head" in one.log()
        assert "engine started" not in one.log()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_of_one_node_ends_the_other_s_start(node, stopped):
    nodes = all_ready(node)
    nodes[stopped].sigterm()
    assert nodes[stopped].wait_exit() == 0
    other = nodes[1 - stopped]
    assert other.wait_exit() == 75
    assert rows(other)[-1]["reason"] == "node-stopped"
    assert f"node {stopped + 1} of 2 was stopped" in other.log()
    assert marked(other) == []


@pytest.mark.parametrize(("lost", "how"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_supervisor_that_is_gone_or_hangs_is_lost_and_they_come_back_together(node, lost, how):
    nodes = all_ready(node)
    gone, other = nodes[lost], nodes[1 - lost]
    os.kill(gone.pid, how)
    ended_alike("node-lost", other)
    again = len(told(other, "READY"))
    other.start()
    waits_for(other, f"node {lost + 1} of 2")
    assert marked(other) == []
    # What systemd does with a unit whose main process is gone, or whose watchdog ran out.
    gone.kill()
    gone.process.wait(30)
    while kill_marked(gone.mark):
        continue
    again_ready(gone)
    other.wait(lambda: len(told(other, "READY")) > again, "READY=1 again")


def test_nothing_is_accepted_without_the_secret(node):
    head, second = node(0), node(1, secret="another secret of some length")
    words = "the head refused our secret; put the same secret on every node"
    second.wait(lambda: any(words in text for text in told(second, "STATUS")), words)
    head.wait(lambda: "does not know the secret" in head.log(), "a warning of the head")
    waits_for(head, "node 2 of 2")
    assert head.status()["cluster"]["refused"] > 0
    assert marked(head) == marked(second) == []


def test_without_a_usable_secret_the_start_is_refused_with_the_remedy(node):
    head = node(0, secret="short")
    assert head.wait_exit() == 78
    assert "a secret of 5 bytes is too short; make one with `openssl rand -hex 32`" in head.log()


def test_a_reload_keeps_the_common_start(node):
    nodes = all_ready(node)
    engines = [set(marked(one)) for one in nodes]
    for one in nodes:
        os.kill(one.pid, signal.SIGHUP)
        one.wait(lambda one=one: one.status().get("reloads") == 1, "the page of the new image")
    wait_until(lambda: _heard(nodes) >= 3, 60, "both to hear each other on", nodes[0].err, nodes[1].err)
    assert [_phases(one) for one in nodes] == [["ready", "ready"]] * 2
    assert [set(marked(one)) for one in nodes] == engines
    nodes[1].sigterm()
    assert nodes[0].wait_exit() == 75
    assert rows(nodes[0])[-1]["reason"] == "node-stopped"


def _heard(nodes):
    """What the images that run now have heard, the less of both."""
    return min((one.status().get("cluster") or {}).get("heard", 0) for one in nodes)
