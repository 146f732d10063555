"""Two nodes in two network namespaces: the cable between them is cut, and mended."""

from process.cluster_tools import HEAD_ADDRESS, all_ready, cable, cluster, ended_alike, waits_for
from process.daemon_tools import marked, rows, told


def test_a_cut_cable_ends_both_and_a_mended_one_lets_them_begin_together(tmp_path):
    with cable() as wire, cluster(tmp_path, head=HEAD_ADDRESS) as start:

        def node(rank):
            return start(rank, prefix=wire.inside(rank))

        nodes = all_ready(node)
        wire.down()
        for one in nodes:
            ended_alike("node-lost", one)
        before = [len(told(one, "READY")) for one in nodes]
        for one in nodes:
            one.start()
        waits_for(nodes[0], "node 2 of 2")
        waits_for(nodes[1], f"node 1 of 2, the head ({HEAD_ADDRESS}:9479: ")
        assert [marked(one) for one in nodes] == [[], []]
        wire.up()
        for one, count in zip(nodes, before, strict=True):
            one.wait(lambda one=one, count=count: len(told(one, "READY")) > count, "READY=1 again")
        assert [row["outcome"] for row in rows(nodes[1])] == ["failed", "ready"]
