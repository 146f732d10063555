"""All instances in one table, and the part of the page that names the others."""

from vllm_supervisor.core.neighbours import free_port
from vllm_supervisor.core.roster import all_ready, roster_lines
from vllm_supervisor.daemon.page_neighbours import neighbours

READY = {"phase": "ready", "ready": True, "status": "Ready", "rates": {"generation": 31.25}}
LOADING = {
    "phase": "loading-weights",
    "ready": False,
    "status": "Loading weights",
    "shards": {"loaded": 54.0, "total": 119.0},
    "eta_seconds": 280.0,
}
WAITING = {"phase": "waiting", "ready": False, "status": "Waiting for b to finish loading (shard 54 of 119)"}
FAILED = {"reason": "gpu-busy", "began_at": 1000.0, "ended_at": 1010.0}


def test_every_instance_has_a_line():
    rows = [
        {"name": "a", "gpus": "0-3", "status": READY, "failure": FAILED},
        {"name": "b", "gpus": "4-5", "status": LOADING},
        {"name": "c", "gpus": "6", "status": WAITING},
        {"name": "d", "gpus": "7", "status": None},
        {"name": "e", "gpus": "?", "status": None, "closed": True},
    ]
    head, *lines = roster_lines(rows, 1310.0)
    assert head.split() == ["instance", "state", "ready", "progress", "GPUs", "tokens/s", "last", "failure"]
    assert lines[0].split() == ["a", "ready", "yes", "-", "0-3", "31.2", "gpu-busy,", "5", "min", "ago"]
    assert "shard 54 of 119, about 4 min 40 s left" in lines[1]
    assert "Waiting for b to finish loading (shard 54 of 119)" in lines[2]
    assert lines[3].split()[:4] == ["d", "not", "running", "no"]
    assert "may not be read" in lines[4]
    assert not all_ready(rows)
    assert all_ready(rows[:1])
    assert not all_ready([])


def test_the_page_links_to_the_others_and_escapes_them():
    other = {"needs": {"name": "b<", "metrics": "0.0.0.0:9478"}, "page": {"status": "Ready & well"}}
    card, title, text = neighbours({"neighbours": [other]})
    assert (card, title) == ("neighbours", "Also on this machine")
    assert '<a href="http://127.0.0.1:9478/">b&lt;</a>' in text
    assert "Ready &amp; well" in text
    assert neighbours({}) == ("neighbours", "", "")
    assert "<a" not in neighbours({"neighbours": [{"needs": {"name": "b", "metrics": "127.0.0.1:0"}}]})[2]


def test_the_first_port_that_nobody_wants():
    taken = ["127.0.0.1:8000", "0.0.0.0:8001", ""]
    assert free_port("127.0.0.1", 8000, taken, {8002}.__contains__) == 8003
    assert free_port("127.0.0.1", 9477, taken, set().__contains__) == 9477
    assert free_port("127.0.0.1", 65_535, ["127.0.0.1:65535"], set().__contains__) == 65_535
