"""Two machines with a systemd each serve one model: set up and driven by the runbook, and struck in every way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.tiny_model import ANSWER
from process.fakes import write_model
from system.service import FAKE, SCRIPT, Service
from system.two_machines import EDITED, Pair, PairBook, two_machines

pytestmark = pytest.mark.timeout(900)
ARGUMENTS = {"tensor-parallel-size": 2, "max-model-len": 256}
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}

REFUSED = (
    (1, "restart kimi", "this is node 2 of 2, and only the head answers: run it on gpu01"),
    (1, "smoke kimi", "this is node 2 of 2, and only the head answers: run it on gpu01"),
    (0, "snapshot kimi -- true", "this is node 1 of 2, and the others end with it: stop the instance on all nodes"),
    (0, "upgrade kimi --vllm 0.32.1", "this is node 1 of 2, and all must run one version: stop the instance on all"),
)
"""Node, verb, and a part of the sentence that refuses it."""


@pytest.fixture(scope="module")
def machines(stage: Path) -> Iterator[Pair]:
    with two_machines(stage) as pair:
        yield pair


@pytest.fixture
def pair(machines: Pair) -> Iterator[Pair]:
    yield machines
    machines.cable("up")
    for node in machines.nodes:
        node.reset()
        node.machine.run(f"rm -f {node.config} /etc/credstore/kimi.cluster-secret", check=False)


def scripted(pair: Pair) -> None:
    """The scripted engine, of which the second node has no port, as vLLM with --headless has none."""
    for node, knobs in zip(pair.nodes, ({}, {"never_listen": True, "no_readiness_line": True}), strict=True):
        node.machine.put(json.dumps({"workers": 1, **knobs}), SCRIPT)
        write_model(node.machine.root / "srv/model")
    pair.edited(
        {
            "command": ["/usr/bin/python3", FAKE, "serve"],
            "model": "/srv/model",
            "args": ARGUMENTS,
            "env": {"FAKE_ENGINE": SCRIPT},
        },
        smoke={"on_start": "off"},
        retry={"first_wait_s": 1.0, "max_wait_s": 1.0},
    )


def real(pair: Pair, engine: Path, model: Path) -> None:
    """vLLM on the CPU, a core a node."""
    for core, node in enumerate(pair.nodes):
        node.environment(f"VLLM_CPU_OMP_THREADS_BIND={core}\n")
    more = {"max-num-seqs": 4, "enforce-eager": True, "reasoning-parser": "deepseek_r1"}
    pair.edited(
        {"command": [str(engine), "serve"], "model": str(model), "args": {**ARGUMENTS, **more}, "env": ENVIRONMENT},
        smoke={"on_start": "off"},
        retry={"first_wait_s": 1.0, "max_wait_s": 1.0},
    )


def begin(pair: Pair, start_s: float) -> PairBook:
    """The runbook until both are ready; what is left of it."""
    book = PairBook(pair, "two-nodes", f"export EDITOR='cp {EDITED}'")
    secret = book.run("gpu01")
    assert len(secret) == 65
    book.run("gpu02", stdin=secret)
    assert "cluster-secret" not in book.run("gpu01 and gpu02")
    book.run("gpu02")
    pair.second.wait_status("Waiting for node 1 of 2, the head")
    assert book.run("gpu02").startswith("Waiting for node 1 of 2, the head")
    assert "right" in book.run("gpu01", timeout=start_s)
    is_ready(book.run("gpu01 and gpu02"))
    return book


def is_ready(said: str) -> None:
    """Both are active, and each sees both nodes."""
    assert [line for line in said.splitlines() if line == "active"] == ["active"] * 2, said
    rows = [line.split()[:4] for line in said.splitlines() if " of 2 " in line]
    assert [row[:1] + row[3:] for row in rows] == [["1", "gpu01"], ["2", "gpu02"]] * 2, said


def again(pair: Pair, before: list[int], timeout: float) -> None:
    """Until both have a later start that is ready, after `before` starts of each."""

    def both() -> bool:
        return all(
            len(starts) > count and starts[-1]["outcome"] == "ready"
            for starts, count in zip(pair.starts(), before, strict=True)
        )

    pair.wait("both are ready again", both, timeout)


def ended(pair: Pair, before: list[int], struck: float) -> list[str]:
    """Why each start ended; none took more than a minute."""
    rows = [starts[count - 1] for starts, count in zip(pair.starts(), before, strict=True)]
    took = [row["ended_at"] - struck for row in rows]
    print([f"{row['sentence']} ({seconds:.1f} s)" for row, seconds in zip(rows, took, strict=True)])
    assert max(took) < 60, rows
    return [row["sentence"] for row in rows]


def worker_killed(pair: Pair, timeout: float) -> None:
    """One cause on both, and both come back."""
    before, struck = [len(starts) for starts in pair.starts()], time.time()
    pair.second.machine.run("kill -KILL $(pgrep -u vllm -f 'VLLM::Worker' | head -n 1)")
    again(pair, before, timeout)
    one, other = ended(pair, before, struck)
    # The worker's end, or that of its main process, which follows at once.
    assert one == other
    assert "node 2 of 2: " in one


def a_restart_and_one_machine_away(pair: Pair, book: PairBook, start_s: float) -> None:
    """The runbook's blocks of a pair that is up, until it is up again."""
    before = [len(starts) for starts in pair.starts()]
    assert "smoke      done" in book.run("gpu01", timeout=start_s)
    again(pair, before, start_s)
    book.run("gpu02")
    pair.head.wait_status("Waiting for node 2 of 2")
    assert book.run("gpu01").startswith("Waiting for node 2 of 2")
    assert left_over(pair.head) == left_over(pair.second) == []
    book.run("gpu02", timeout=start_s)
    pair.both("active", start_s)


def undone(pair: Pair, book: PairBook) -> None:
    """The runbook's last block: both are stopped, and nothing is left of them."""
    book.run("gpu01 and gpu02")
    states = [node.show("ActiveState", "ExecMainStatus") for node in pair.nodes]
    assert states[0] == {"ActiveState": "inactive", "ExecMainStatus": "0"}, pair.told()
    # The second one had ended with the first one, or waited for it already.
    assert states[1]["ActiveState"] in {"inactive", "failed"}, pair.told()
    assert states[1]["ExecMainStatus"] in {"0", "75"}, pair.told()
    assert [node.left_over() for node in pair.nodes] == ["", ""]
    assert book.left == []


def test_the_runbook_of_two_nodes(pair: Pair) -> None:
    scripted(pair)
    book = begin(pair, 120)

    for node, verb, words in REFUSED:
        done = pair.nodes[node].machine.run(f"vllm-supervisor {verb}", check=False)
        assert words in done.stderr, done.stderr
        assert done.returncode == (64 if verb.startswith("smoke") else 10), done.stderr
    a_restart_and_one_machine_away(pair, book, 90)
    worker_killed(pair, 90)

    before, struck = [len(starts) for starts in pair.starts()], time.time()
    pair.cable("down")
    pair.head.wait_status("Waiting for node 2 of 2")
    pair.second.wait_status("Waiting for node 1 of 2, the head")
    pair.cable("up")
    again(pair, before, 90)
    for said in ended(pair, before, struck):
        assert "node-lost: " in said

    undone(pair, book)


def left_over(node: Service) -> list[str]:
    """Processes of an engine."""
    return [line for line in node.left_over().splitlines() if "VLLM" in line or "serve" in line]


@pytest.mark.long
def test_a_real_engine_on_two_machines(pair: Pair, engine: Path, tiny_model: Path) -> None:
    real(pair, engine, tiny_model)
    began = time.monotonic()
    book = begin(pair, 400)
    print(f"ready after {time.monotonic() - began:.1f} s")
    done = pair.head.machine.run(["vllm-supervisor", "smoke", "kimi", "--json"], timeout=120)
    assert json.loads(done.stdout)["content"].strip() == ANSWER
    a_restart_and_one_machine_away(pair, book, 400)
    worker_killed(pair, 400)
    pair.head.machine.run(["vllm-supervisor", "smoke", "kimi"], timeout=120)
    undone(pair, book)
