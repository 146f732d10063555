"""Several instances on one machine: what overlaps, and whose load comes first."""

import json

import pytest

from pure.start import PAUSE, Start
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.neighbours import check_neighbours, needs_of
from vllm_supervisor.core.check.observed import EngineView, GpuObservation, GpuSeen, Observed
from vllm_supervisor.core.gpu import GpuLost, GpuRecord, GpuSample, GpuTable
from vllm_supervisor.core.gpu_records import only
from vllm_supervisor.core.neighbours import (
    Claim,
    Needs,
    Neighbour,
    Standing,
    ahead,
    from_document,
    listed,
    named,
    same_port,
    to_document,
    waiting_for,
)
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.status import sentence

GIB = 1 << 30
CARDS = GpuObservation(tuple(GpuSeen(i, f"GPU-{i:x}a", "X", 96 * GIB, 0, (12, 0)) for i in range(8)), "580.1")
KNOWN = [(gpu.index, gpu.uuid) for gpu in CARDS.gpus]


def needs(name, gpus=None, *, count=2, share=0.9, engine="127.0.0.1:8000", metrics="127.0.0.1:9477"):
    return Needs(name, gpus, count, share, engine, metrics)


def apart(name, **more):
    return needs(name, **({"engine": "127.0.0.1:8001", "metrics": "127.0.0.1:9478"} | more))


def check(mine, other, standing=Standing.RUNNING, gpus=CARDS):
    return [str(finding) for finding in check_neighbours(mine, (Neighbour(other, standing),), gpus)]


def test_what_a_running_instance_has_is_refused_by_its_name():
    found = check_neighbours(needs("a", ("0", "1")), (Neighbour(needs("b", ("GPU-1a", "2")), Standing.RUNNING),), CARDS)
    assert [(item.level, item.reason) for item in found] == [
        ("refuse", "gpu-busy"),
        ("refuse", "port-in-use"),
        ("warn", ""),
    ]
    assert found[0].seen == "GPU 1 is taken by instance b, which runs"
    assert found[0].remedy == "give each its own: engine.gpus, or stop b"
    assert found[1].seen == "port 8000 is taken by instance b, which runs"
    assert "metrics port 127.0.0.1:9477 is also that of instance b" in found[2].seen


def test_what_does_not_run_is_a_warning_and_says_so():
    assert check(needs("a"), apart("b"), Standing.CONFIGURED) == [
        "warn: neighbour: GPUs 0-1 are also wanted by instance b, which does not run; give each its own: engine.gpus"
    ]
    (text,) = check(needs("a"), apart("b", engine="127.0.0.1:8000"), Standing.ENABLED)
    assert "GPUs 0-1 and port 8000 are also wanted by instance b, which is enabled: at the next boot" in text


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (needs("a", ("0", "1")), apart("b", gpus=("2", "3"))),
        (needs("a", ("0", "1"), share=0.45), apart("b", gpus=("0", "1"), share=0.45)),
        (needs("a", count=0), apart("b")),
        # Without engine.gpus the engine takes the first ones, and no more than it needs.
        (needs("a", ("2", "3")), apart("b", count=2)),
        (needs("a", metrics=""), needs("b", ("4", "5"), engine="", metrics="")),
    ],
)
def test_instances_that_are_apart(mine, other):
    assert check(mine, other) == []


def test_ports_meet_on_wildcards_only():
    assert same_port("0.0.0.0:8000", "127.0.0.1:8000")
    assert same_port("[::1]:8000", "[::]:8000")
    assert not same_port("10.0.0.1:8000", "127.0.0.1:8000")
    assert not same_port("127.0.0.1:0", "127.0.0.1:0")


def test_the_engine_port_may_not_be_another_ones_metrics_port():
    found = check(needs("a", count=0, engine="127.0.0.1:9478", metrics=""), apart("b"))
    assert len(found) == 1
    assert "port 9478 (there the metrics port) is taken by instance b, which runs; set engine.port" in found[0]


def test_the_ports_of_a_cluster_are_told_apart_by_their_settings():
    ports = (("cluster.port", "10.0.0.1:9479"), ("cluster.master_port", "0.0.0.0:29501"))
    one, other = Needs("a", count=0, further=ports), Needs("b", count=0, further=ports[1:])
    (text,) = check(one, other)
    assert text.startswith("refuse: neighbour-port: port 29501 is taken by instance b, which runs; ")
    assert text.endswith("set cluster.master_port to another, or stop b")
    (text,) = check(other, one, Standing.CONFIGURED)
    assert "port 29501 is also wanted by instance a, which does not run; set cluster.master_port to another" in text
    (text,) = check(Needs("c", count=0, engine="0.0.0.0:9479"), one)
    assert "port 9479 (there cluster.port) is taken by instance a, which runs; set engine.port to another" in text
    (text,) = check(one, Needs("c", count=0, metrics="0.0.0.0:9479"))
    assert "port 9479 (there the metrics port) is taken by instance c, which runs; set cluster.port" in text


def test_needs_come_from_the_configuration():
    view = EngineView(
        ("vllm", "serve", "--pipeline-parallel-size", "2"),
        "/m",
        args={"tensor-parallel-size": 2, "gpu-memory-utilization": 0.5},
        env={"CUDA_VISIBLE_DEVICES": "4, 5,6,7"},
        metrics_listen="127.0.0.1:9477",
    )
    assert needs_of("a", view) == Needs("a", ("4", "5", "6", "7"), 4, 0.5, "127.0.0.1:8000", "127.0.0.1:9477")


def test_the_whole_check_names_the_neighbour_first():
    view = EngineView(("vllm", "serve"), "/m", args={"tensor-parallel-size": 2}, name="a", metrics_listen="127.0.0.1:1")
    seen = Observed(gpus=CARDS, neighbours=(Neighbour(apart("b"), Standing.RUNNING),))
    assert findings(view, seen)[0].seen == "GPUs 0-1 are taken by instance b, which runs"


def test_a_gpu_that_is_not_there_is_named():
    view = EngineView(("vllm", "serve"), "/m", args={"tensor-parallel-size": 2}, env={"CUDA_VISIBLE_DEVICES": "0,9"})
    (found,) = [item for item in findings(view, Observed(gpus=CARDS)) if item.check == "gpus"]
    assert "GPU 9 of engine.gpus (or CUDA_VISIBLE_DEVICES) is not one of this machine" in found.seen


def test_words_and_lists_of_gpus():
    assert named(["3", "GPU-1a", "nine", "4"], KNOWN) == (3, 1)
    assert named(None, KNOWN) == tuple(range(8))
    assert listed([0, 1, 2, 5, 7, 6]) == "GPUs 0-2, 5-7"
    assert listed([3]) == "GPU 3"


def test_the_table_of_an_instance_shows_its_own_gpus():
    table = GpuTable(
        samples=(GpuSample(0, "GPU-0a"), GpuSample(1, "GPU-1a")),
        lost=(GpuLost(2, "", "", "lost"),),
        records=tuple(GpuRecord(i, f"GPU-{i}a", "X") for i in range(2)),
    )
    assert only(table, None) is table
    mine = only(table, ["GPU-1", "2"])
    assert [gpu.index for gpu in (*mine.samples, *mine.lost, *mine.records)] == [1, 2, 1]


def claim(name, size=300, since=10.0, **more):
    return Claim(needs(name), 1, 1, since, checkpoint=f"/{name}", size=size * GIB, **more)


MINE = claim("m", waiting=True)


@pytest.mark.parametrize(
    ("others", "first"),
    [
        ([], None),
        ([claim("b", loading=True, since=99.0)], "b"),
        ([claim("b", loading=True, size=100)], None),
        ([claim("b", loading=True, size=0)], None),
        ([claim("b")], None),
        ([claim("b", waiting=True, since=9.0)], "b"),
        ([claim("b", waiting=True, since=11.0)], None),
        # Equal times: the name decides, so that never both wait.
        ([claim("b", waiting=True)], "b"),
        ([claim("z", waiting=True)], None),
        ([claim("b", waiting=True, since=1.0), claim("c", loading=True, since=2.0)], "c"),
        ([claim("b", loading=True, size=100), claim("c", loading=True, size=100, since=11.0)], "b"),
    ],
)
def test_who_loads_first(others, first):
    found = ahead(MINE, others, 450 * GIB)
    assert (found.needs.name if found else None) == first


def test_nobody_waits_without_reason():
    other = claim("b", loading=True)
    assert ahead(MINE, [other], None) is None
    assert ahead(claim("m", size=0), [other], GIB) is None
    # The same checkpoint is in the page cache once.
    assert ahead(MINE, [Claim(needs("b"), 1, 1, loading=True, checkpoint="/m", size=300 * GIB)], GIB) is None


def test_a_claim_survives_its_file_and_nonsense_does_not():
    one = claim("b", loading=True, page={"phase": "loading-weights", "shards": {"loaded": 54, "total": 119}})
    assert from_document(json.loads(json.dumps(to_document(one)))) == one
    assert waiting_for(one) == "b to finish loading (shard 54 of 119)"
    assert waiting_for(claim("c", page={"phase": "connecting"})) == "c to finish loading (connecting)"
    for nonsense in ({}, [], None, {"needs": {}}, {**to_document(one), "pid": "x"}, {**to_document(one), "new": 1}):
        assert from_document(nonsense) is None


def test_the_wait_is_announced_and_ends_with_the_turn():
    start = Start().do(ev.Begin(), ev.PreflightDone(ahead="b to finish loading (shard 1 of 9)"), after=PAUSE)
    assert start.phase is Phase.WAITING
    assert sentence(start.state, start.now) == "Waiting for b to finish loading (shard 1 of 9), 0.0 s so far"
    for shard in range(2, 9):
        start.do(ev.Turn(f"b to finish loading (shard {shard} of 9)"), after=PAUSE)
    assert "shard 8 of 9" in sentence(start.state, start.now)
    assert start.count(fx.NotifyExtend) == 8
    assert start.count(fx.Launch) == 0
    start.do(ev.Turn(), after=PAUSE)
    assert start.phase is Phase.LAUNCHING
    assert start.count(fx.Launch) == 1
    # What was waited is no gap of the launch.
    assert Phase.LAUNCHING not in start.state.evidence.gaps


def test_nobody_is_kept_down_for_ever():
    start = Start(Policy(load_wait_s=60.0)).do(ev.Begin(), ev.PreflightDone(ahead="b to finish loading"))
    start.wait(61.0)
    assert start.phase is Phase.LAUNCHING
    assert "loading beside it now" in start.logged()


def test_systemd_is_not_told_to_wait_when_nobody_looks():
    start = Start().do(ev.Begin(), ev.PreflightDone(ahead="b to finish loading")).wait(300.0)
    assert start.count(fx.NotifyExtend) == 1
