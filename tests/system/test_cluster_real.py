"""Real vLLM over two network namespaces, one core each: ready together, a right answer, one fate."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lab import paths
from lab.models import tiny_model
from process.cluster_tools import HEAD_ADDRESS, WIRE, arguments, cable, cluster, ended_alike, waits_for
from process.daemon_tools import marked, told, until_ready, verb
from process.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ARGUMENTS = {
    "tensor-parallel-size": 2,
    "max-model-len": 256,
    "max-num-seqs": 4,
    "enforce-eager": True,
    "distributed-executor-backend": "mp",
}
START_S = 400.0
"""A start takes about 30 s where nothing else runs."""


def environment(rank):
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(rank),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_two_nodes_of_a_real_engine_start_answer_and_end_together(tmp_path):
    with cable() as wire, cluster(tmp_path, head=HEAD_ADDRESS) as start:
        model = str(tiny_model())

        def node(rank):
            engine = {"command": [str(paths.vllm()), "serve"], "model": model, "port": 8000}
            engine |= {"args": ARGUMENTS, "env": environment(rank)}
            return start(rank, prefix=wire.inside(rank), engine=engine, cluster={"interface": WIRE})

        second = node(1)
        waits_for(second, "node 1 of 2, the head")
        head = node(0)
        for one in (head, second):
            until_ready(one, START_S)
        shown = verb("status", str(head.config), "--state-dir", str(head.state), "--runtime-dir", str(head.runtime))
        print(shown.stdout)
        assert [line.split()[:3] for line in shown.stdout.splitlines() if " of 2 " in line] == [
            ["1", "of", "2"],
            ["2", "of", "2"],
        ]
        assert "France is Paris" in _answer(head, wire)
        # What the engine alone would notice with the next request, or after 300 s.
        worker = next(
            pid for pid in marked(second) if arguments(pid)[:1] and arguments(pid)[0].startswith("VLLM::Worker")
        )
        os.kill(worker, signal.SIGKILL)
        ended_alike(_reason(second), head, second)
        print(told(head, "STATUS")[-1])
        assert "node 2 of 2: " in told(head, "STATUS")[-1]


def _answer(head, wire):
    """The answer to the one question that the model knows, asked by the supervisor's own verb inside the namespace."""
    words = json.dumps(
        {
            "model": "kimi",
            "temperature": 0,
            "max_tokens": 100,
            "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        }
    )
    script = (
        "import sys, urllib.request as r; q = r.Request('http://127.0.0.1:8000/v1/chat/completions', sys.argv[1].encode(), "
        "{'Content-Type': 'application/json'}); print(r.urlopen(q, timeout=100).read().decode())"
    )
    done = subprocess.run(
        [*wire.inside(0), sys.executable, "-c", script, words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _reason(daemon):
    daemon.wait_exit()
    return wait_until(
        lambda: told(daemon, "STATUS")[-1].removeprefix("Failed: ").partition(":")[0], 10, "the last words"
    )
