"""Two nodes in two network namespaces: the cable between them is cut, and mended."""

import contextlib
import os
import subprocess

import pytest

from process.cluster_tools import all_ready, cluster, ended_alike, waits_for
from process.daemon_tools import marked, rows, told


@pytest.fixture
def cable():
    """Two namespaces and a pair of virtual network cards between them; gives the names of the namespaces. Needs root."""
    names = [f"vs{os.getpid()}n{rank}" for rank in range(2)]
    try:
        for rank, name in enumerate(names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            if rank:
                _ip("-n", names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", name)
        for rank, name in enumerate(names):
            _ip("-n", name, "addr", "add", f"10.213.0.{rank + 1}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
        yield names
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=30, capture_output=True, text=True)


def test_a_cut_cable_ends_both_and_a_mended_one_lets_them_begin_together(tmp_path, cable):
    with cluster(tmp_path, head="10.213.0.1") as start:

        def node(rank):
            return start(rank, prefix=("ip", "netns", "exec", cable[rank]))

        nodes = all_ready(node)
        _ip("-n", cable[1], "link", "set", "wire", "down")
        for one in nodes:
            ended_alike("node-lost", one)
        before = [len(told(one, "READY")) for one in nodes]
        for one in nodes:
            one.start()
        waits_for(nodes[0], "node 2 of 2")
        waits_for(nodes[1], "node 1 of 2, the head (10.213.0.1:9479: ")
        assert [marked(one) for one in nodes] == [[], []]
        _ip("-n", cable[1], "link", "set", "wire", "up")
        for one, count in zip(nodes, before, strict=True):
            one.wait(lambda one=one, count=count: len(told(one, "READY")) > count, "READY=1 again")
        assert [row["outcome"] for row in rows(nodes[1])] == ["failed", "ready"]
