"""[cluster]: what must be said, what contradicts it, and what a node's engine gets."""

from pathlib import Path

import pytest

from vllm_supervisor.config import Problem, parse
from vllm_supervisor.daemon.instance import read_instance
from vllm_supervisor.daemon.node import as_node, doubts, secret_path

BASE = '[engine]\nmodel = "/m"\n[engine.args]\ntensor-parallel-size = 16\napi-server-count = 2\n'
NAMED = '[cluster]\nnnodes = 2\nhead = "10.0.0.1"\nnodes = ["alpha", "beta"]\ninterface = "eth1"\n'


def node(host, text=BASE + NAMED):
    return as_node(parse(text, "kimi.toml"), host, Path("kimi.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nnodes = 2\nnode_rank = 0", "head must be set: the address of the node of rank 0"),
        ('nnodes = 2\nhead = "h"', "set node_rank on every machine, or nodes to the host names by rank"),
        ('nnodes = 2\nhead = "h"\nnode_rank = 2', "node_rank must be 0 to 1: nnodes is 2"),
        ('nnodes = 2\nhead = "h"\nnodes = ["a"]', "nodes must name 2 different machines (nnodes)"),
        ('nnodes = 2\nhead = "h"\nnodes = ["a", "a"]', "nodes must name 2 different machines (nnodes)"),
        ('nnodes = 2\nhead = "h"\nnode_rank = 0\nport = 29501', "port and master_port must differ"),
        ("nnodes = 65", "must be at most 64, but it is 65"),
    ],
)
def test_what_is_missing_or_wrong_is_said(text, words):
    found = parse(f"{BASE}[cluster]\n{text}\n", "kimi.toml")
    assert isinstance(found, list)
    assert words in " ".join(map(str, found))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("nnodes = 2", "engine.args.nnodes follows from [cluster]: remove it"),
        ("headless = true", "engine.args.headless follows from [cluster]: remove it"),
        ('distributed_executor_backend = "ray"', "remove distributed-executor-backend, or [cluster]"),
    ],
)
def test_what_contradicts_a_cluster_is_refused(more, words):
    found = parse(f"{BASE}{more}\n{NAMED}", "kimi.toml")
    assert words in " ".join(map(str, found))
    assert not isinstance(parse(f"{BASE}{more}\n", "kimi.toml"), list)


def test_held_weights_are_of_one_machine():
    found = parse(f"{BASE}{NAMED}[weights]\nheld = true\n", "kimi.toml")
    assert "weights.held works on one machine only" in " ".join(map(str, found))


def test_without_a_cluster_nothing_changes():
    settings = parse(BASE, "kimi.toml")
    assert as_node(settings, "anywhere", Path("kimi.toml")) is settings


def test_one_file_serves_all_machines_by_their_names():
    head, second = node("alpha.example.org"), node("beta")
    assert (head.cluster.place, second.cluster.place) == (0, 1)
    shared = {"tensor-parallel-size": 16, "nnodes": 2, "master-addr": "10.0.0.1", "master-port": 29501}
    assert head.engine.args == {**shared, "api-server-count": 2, "node-rank": 0}
    # vLLM refuses --api-server-count beside --headless.
    assert second.engine.args == {**shared, "node-rank": 1}
    for one in (head, second):
        assert one.engine.env == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}


def test_only_the_head_is_asked_and_drained():
    head, second = node("alpha"), node("beta")
    assert (head.metrics.engine, head.smoke.on_start, head.liveness.mode) == ("merge", "report", "restart")
    assert (second.metrics.engine, second.smoke.on_start, second.liveness.mode) == ("off", "off", "off")
    assert (head.stop.drain_s, second.stop.drain_s) == (30.0, 0.0)


def test_a_machine_that_is_none_of_the_nodes_is_told_so():
    found = node("gamma")
    assert isinstance(found, Problem)
    assert "does not name this machine, gamma; add it, or set node_rank" in str(found)
    assert node("gamma", BASE + NAMED + "node_rank = 1\n").cluster.place == 1


def test_the_secret_is_the_unit_s_credential_or_what_the_unit_would_take():
    assert secret_path("kimi", {"CREDENTIALS_DIRECTORY": "/c"}) == Path("/c/cluster-secret")
    assert secret_path("kimi", {}) == Path("/etc/credstore/kimi.cluster-secret")


def test_check_tells_of_a_secret_that_cannot_be_used(tmp_path):
    alone, node = tmp_path / "alone.toml", tmp_path / "kimi.toml"
    alone.write_text(BASE)
    node.write_text(f"{BASE}{NAMED}node_rank = 1\n")
    credentials = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert doubts(read_instance(alone, environ={}), credentials) == ()
    instance, secret = read_instance(node, environ={}), tmp_path / "cluster-secret"
    said = []
    for text, mode in (("", 0), ("short", 0o600), ("0123456789abcdef", 0o644)):
        if text:
            secret.write_text(text)
            secret.chmod(mode)
        said += [str(one) for one in doubts(instance, credentials)]
    # Where there is none, an ordinary user cannot know of it.
    assert "cluster-secret" in said[0]
    assert "a secret of 5 bytes is too short" in said[1]
    assert f"others may use this secret (mode 0644); run `chmod 600 {secret}`" in said[2]
    assert said[2].endswith(f"put the same secret into {secret} on every node")
    secret.chmod(0o600)
    assert doubts(instance, credentials) == ()
