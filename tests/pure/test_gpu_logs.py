"""Logs of vLLM 0.24 on two H200 under the supervisor: a start with a stop, and three deaths (docs/gpu)."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_supervisor.core.facts import Fact, Figure, FigureName, StartupComplete
from vllm_supervisor.core.scanner import Scanner

LOGS = Path(__file__).parents[1] / "corpus" / "gpu-logs"

EXPECTED = {
    # The supervisor's own verdict was engine-hung; from the log alone only the kill that followed can be seen.
    "hang-worker-v0.24.log": ("worker-killed", "Worker proc VllmWorker-0 died unexpectedly"),
    # The API server was killed: nobody was left to say so.
    "kill-api-v0.24.log": ("healthy", ""),
    "kill-worker-v0.24.log": ("worker-killed", "Worker proc VllmWorker-1 died unexpectedly"),
    "serve-stop-v0.24.log": ("healthy", ""),
}


def read(name: str) -> tuple[Scanner, list[Fact]]:
    scanner, facts = Scanner(), []
    for line in (LOGS / name).read_text(encoding="utf-8").splitlines():
        facts += scanner.feed(line)
    return scanner, facts


def test_every_log_has_an_expectation() -> None:
    assert {path.name for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_log_is_read_to_its_right_end(name: str) -> None:
    reason, evidence = EXPECTED[name]
    scanner, facts = read(name)
    verdict = scanner.verdict()
    assert verdict.reason == reason
    assert evidence in verdict.evidence
    assert verdict.phase == "serving"
    assert sum(isinstance(fact, StartupComplete) for fact in facts) == 1


def test_the_figures_of_a_gpu_start() -> None:
    _, facts = read("serve-stop-v0.24.log")
    figures = {fact.name: fact.value for fact in facts if isinstance(fact, Figure)}
    assert figures[FigureName.WEIGHTS_GIB] == 4.25
    assert figures[FigureName.KV_CACHE_TOKENS] == 1_849_264
    assert figures[FigureName.ATTENTION_BACKEND] == "FLASH_ATTN"
    assert figures[FigureName.NCCL_VERSION] == "2.28.9"
