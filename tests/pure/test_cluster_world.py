"""Nodes in a bad network: one fate, nobody ready alone, nobody left behind, and back together."""

import pytest

from pure.cluster_world import World
from vllm_supervisor.core.causes import Cause

DIED = Cause("worker-killed", summary="VLLM::Worker_TP1 (pid 7) is gone")
ALL_KNOW_S = 10.0
SEEDS = range(6)


def started(size, seed, apart_s=10.0, **network):
    world = World(size, seed, **network)
    for node in world.nodes:
        node.back_at = world.random.uniform(0, apart_s)
    world.run(apart_s + 20)
    assert world.all_ready()
    return world


def ends_together(world, since, reasons):
    """Everybody ended the one start within ten seconds for an allowed reason, and all came back."""
    epoch = next(epoch for epoch, _, at, _ in world.endings if at >= since)
    ends = [end for end in world.endings if end[0] == epoch]
    assert {rank for _, rank, _, _ in ends} == set(range(world.size))
    assert max(at for _, _, at, _ in ends) - since <= ALL_KNOW_S
    assert {cause.reason for *_, cause in ends} <= reasons
    assert len({(cause.reason, cause.summary) for *_, cause in ends if cause.reason != "node-lost"}) <= 1


def nobody_is_ready_alone(world, seconds):
    """At no time is one ready for longer than the notice takes while another is not."""
    alone = 0.0
    end = world.now + seconds
    while world.now < end:
        world.run(0.1)
        ready = [world.ready(node) for node in world.nodes]
        alone = alone + 0.1 if any(ready) and not all(ready) else 0.0
        assert alone <= ALL_KNOW_S
    assert world.all_ready()


@pytest.mark.parametrize("size", [2, 3, 16])
def test_nodes_start_in_any_order_minutes_apart(size):
    for seed in SEEDS:
        world = started(size, seed, apart_s=300.0 if size == 2 else 10.0)
        assert len(world.launches) == size
        assert not world.endings


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("which", [0, 1])
def test_a_fault_of_one_is_the_fate_of_all(size, which):
    for seed in SEEDS:
        world = started(size, seed)
        since = world.now
        world.fail(world.nodes[which], DIED)
        nobody_is_ready_alone(world, 60)
        ends_together(world, since, {"worker-killed"})


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("which", [0, 1])
def test_a_machine_that_is_gone_takes_the_start_with_it(size, which):
    for seed in SEEDS:
        world = started(size, seed)
        since = world.now
        world.kill(world.nodes[which], back_s=45)
        world.run(44)
        assert not any(world.ready(node) for node in world.nodes)
        nobody_is_ready_alone(world, 60)
        ends_together(world, since, {"node-lost"})


@pytest.mark.parametrize("which", [0, 1])
def test_a_machine_that_comes_back_at_once_joins_the_next_start_and_not_this_one(which):
    for seed in SEEDS:
        world = started(3, seed)
        since = world.now
        world.kill(world.nodes[which], back_s=0.3)
        nobody_is_ready_alone(world, 90)
        ends_together(world, since, {"node-lost"})
        assert all(world.launches.count(launch) == 1 for launch in world.launches)


@pytest.mark.parametrize("which", [0, 2])
def test_a_cut_network_ends_all_and_they_come_back(which):
    for seed in SEEDS:
        world = started(3, seed)
        since = world.now
        world.cut = {which}
        world.run(30)
        ends_together(world, since, {"node-lost"})
        world.cut = set()
        nobody_is_ready_alone(world, 60)


def test_a_stopped_supervisor_is_a_lost_one():
    for seed in SEEDS:
        world = started(2, seed)
        since = world.now
        world.nodes[1].frozen = True
        world.run(9.0)
        assert world.nodes[0].mind is None or world.nodes[0].mind.fate.reason == "node-lost"
        world.nodes[1].frozen = False
        nobody_is_ready_alone(world, 60)
        ends_together(world, since, {"node-lost"})


def test_a_lossy_network_costs_no_start():
    for seed in SEEDS:
        world = started(3, seed, loss=0.2, delay_s=1.0)
        world.run(100)
        assert not world.endings


def test_whatever_happens_in_whatever_order_all_end_alike():
    for seed in range(8):
        world = started(3, seed, loss=0.1)
        for _ in range(12):
            node = world.random.choice(world.nodes)
            match world.random.randrange(4):
                case 0 if node.mind is not None:
                    world.fail(node, DIED)
                case 1:
                    world.kill(node, back_s=world.random.uniform(0.1, 20))
                case 2:
                    world.cut = {node.rank}
                case _:
                    world.cut = set()
            world.run(world.random.uniform(0.1, 15))
        world.cut = set()
        nobody_is_ready_alone(world, 90)
        assert len(set(world.launches)) == len(world.launches)
        alive = world.nodes[0].mind.start
        for epoch in {epoch for epoch, _ in world.launches} - {alive}:
            # Who loaded anything for a start has ended it.
            began = {rank for launched, rank in world.launches if launched == epoch}
            assert began <= {rank for ended, rank, *_ in world.endings if ended == epoch}


def test_a_difference_is_named_before_anything_loads():
    world = World(2, 1, prints={0: {"version of vllm": "0.32.0"}, 1: {"version of vllm": "0.31.0"}})
    world.run(6)
    assert not world.launches
    causes = {end[1]: end[3] for end in world.endings}
    assert set(causes) == {0, 1}
    assert len(set(causes.values())) == 1
    assert causes[0].reason == "node-differs"
    assert "version of vllm is 0.31.0 on node 2 of 2 and 0.32.0 on the head" in causes[0].summary
