"""Whole logs: the thirty composed failures, the recorded starts, and every beginning of each."""

import tomllib
from pathlib import Path

import pytest

from pure.redress import DRESSES, journal
from vllm_supervisor.core.facts import CauseFound, StartupComplete
from vllm_supervisor.core.scanner import Scanner
from vllm_supervisor.core.splitter import Splitter

CORPUS = Path(__file__).parents[1] / "corpus"
FAILURES = sorted((CORPUS / "failure-logs").glob("*.log"))
RECORDED = CORPUS / "engine-logs"

# reason, phase, whether uvicorn said that it is up, and a part of the line of evidence
EXPECTED = {
    "cpu-badarg": ("bad-arguments", "launching", False, "unrecognized arguments: --no-such-flag"),
    "cpu-eager": ("worker-killed", "serving", True, "VllmWorker-0 died unexpectedly (exit code: -4)"),
    "cpu-errlevel": ("healthy", "serving", True, ""),
    "cpu-fp8kv": ("healthy", "serving", True, ""),
    "cpu-kvsmall": ("kv-cache-too-small", "sizing-kv-cache", False, "max seq len (8388608)"),
    "cpu-missing": ("checkpoint-incomplete", "loading-weights", False, "tiny_missing/model-00002-of-00002.safetensors"),
    "cpu-nopath": ("model-not-found", "configuring", False, "'/no/such/model'"),
    "cpu-notok": ("healthy", "serving", True, ""),
    "cpu-portused": ("port-in-use", "launching", False, "[Errno 98] Address already in use"),
    "cpu-quiet": ("healthy", "serving", False, ""),
    "cpu-shards": ("healthy", "serving", True, ""),
    "cpu-start-ok": ("healthy", "serving", True, ""),
    "cpu-tp3": ("tensor-parallel-invalid", "configuring", False, "attention heads (4)"),
    "cpu-trunc": ("checkpoint-corrupt", "loading-weights", False, "incomplete metadata, file not fully covered"),
    "cpu-worker-killed": ("worker-killed", "serving", True, "VllmWorker-0 died unexpectedly (exit code: -9)"),
    "gpu-cold-compile": ("healthy", "serving", True, ""),
    "gpu-gpubusy": ("gpu-busy", "connecting", False, "cuda:0 (38.77/139.8 GiB)"),
    # It served, hung, and was killed from outside without a word: the log cannot say why.
    "gpu-tp2-ready-then-hung": ("unknown", "serving", True, ""),
}


def lines_of(path):
    splitter = Splitter()
    return splitter.feed(path.read_bytes()) + splitter.flush()


def read(lines):
    scanner, facts = Scanner(), []
    for line in lines:
        facts += scanner.feed(line)
    return scanner, facts


@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.stem)
def test_a_failure_log_gives_its_sidecar(path):
    expected = tomllib.loads(path.with_suffix(".toml").read_text())
    scanner, facts = read(lines_of(path))
    cause = scanner.verdict()
    assert cause.reason == expected["reason"]
    assert cause.cause_class == expected["class"]
    assert cause.phase == expected["phase"]
    assert cause.evidence == expected["evidence"]
    found = [fact.cause for fact in facts if isinstance(fact, CauseFound)]
    assert [one.reason for one in found[-1:]] == ([] if expected["class"] == "none" else [expected["reason"]])
    assert cause.advice.endswith(".")


def test_all_thirty_failure_logs_are_here():
    assert len(FAILURES) == 30


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recorded_start_is_read_right(name):
    reason, phase, complete, evidence = EXPECTED[name]
    scanner, facts = read(lines_of(RECORDED / f"{name}.log"))
    cause = scanner.verdict()
    assert (cause.reason, cause.phase) == (reason, phase)
    assert any(isinstance(fact, StartupComplete) for fact in facts) is complete
    assert evidence in cause.evidence
    assert bool(cause.evidence) is bool(evidence)


def test_every_recorded_log_has_an_expectation():
    assert {path.stem for path in RECORDED.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("path", [*FAILURES, *sorted(RECORDED.glob("*.log"))], ids=lambda path: path.stem)
def test_no_beginning_of_a_log_accuses_another_cause(path):
    lines = lines_of(path)
    final = read(lines)[0].verdict().reason
    scanner = Scanner()
    for line in lines:
        scanner.feed(line)
        verdict = scanner.verdict()
        if verdict.reason not in ("healthy", "unknown"):
            assert verdict.reason == final, line
            assert verdict.evidence


@pytest.mark.parametrize("dress", DRESSES, ids=lambda dress: dress.__name__)
@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.stem)
def test_the_dress_of_a_log_changes_nothing(path, dress):
    expected = tomllib.loads(path.with_suffix(".toml").read_text())
    lines = lines_of(path)
    if dress is journal and "kernel: " in "".join(lines):
        assert any(" systemd[1]: " in line or " kernel: " in line for line in lines)  # it is in one already
        return
    cause = read([dress(line) for line in lines])[0].verdict()
    assert (cause.reason, cause.phase) == (expected["reason"], expected["phase"])
    assert cause.evidence == (dress(expected["evidence"]) if expected["evidence"] else "")


def test_a_second_start_in_one_log_forgets_the_first():
    failed = lines_of(CORPUS / "failure-logs" / "kv-cache-too-small-v0.32.log")
    healthy = lines_of(CORPUS / "failure-logs" / "healthy-skipped-tactics-v0.28.log")
    assert read([*failed, *healthy])[0].verdict().reason == "healthy"
    assert read([*healthy, *failed])[0].verdict().reason == "kv-cache-too-small"


def test_a_second_start_begins_at_its_own_phase_and_forgets_even_a_lost_gpu():
    lost = lines_of(CORPUS / "failure-logs" / "gpu-lost-xid79-v0.28.log")
    port = lines_of(CORPUS / "failure-logs" / "port-in-use-bind-v0.18.log")
    cause = read([*lost, *port])[0].verdict()
    assert (cause.reason, cause.phase) == ("port-in-use", "launching")
