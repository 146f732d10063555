"""What a verb may do on one node of a cluster."""

import pytest

from vllm_supervisor.core.cluster.verbs import not_here

EVERY = ("restart", "smoke", "snapshot", "upgrade", "status", "wait")


def refused(rank, nnodes=2, **more):
    return {verb for verb in EVERY if not_here(verb, nnodes=nnodes, rank=rank, head="gpu01", **more)}


def test_a_single_machine_refuses_nothing():
    assert refused(0, nnodes=1) == set()


@pytest.mark.parametrize(("rank", "stops", "wanted"), [
    (0, True, {"snapshot", "upgrade"}),
    (0, False, {"upgrade"}),
    (1, True, {"restart", "smoke", "snapshot", "upgrade"}),
    (1, False, {"restart", "smoke", "upgrade"}),
])  # fmt: skip
def test_what_would_act_on_one_machine_alone_is_refused(rank, stops, wanted):
    assert refused(rank, stops=stops) == wanted


def test_the_sentence_names_the_node_and_the_head():
    said = not_here("restart", nnodes=3, rank=2, head="gpu01")
    assert said == "this is node 3 of 3, and only the head answers: run it on gpu01"
