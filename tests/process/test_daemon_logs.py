"""Every captured log, replayed by the fake from its own processes, comes to its right end."""

from __future__ import annotations

from pathlib import Path

import pytest

from process.daemon_tools import ended, rows, running, told, until_ready

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "engine-logs"
READY = {
    # log: (tensor parallel, a figure that it gives)
    "cpu-start-ok": (2, "kv_cache_tokens"),
    "cpu-shards": (2, "kv_cache_tokens"),
    "cpu-notok": (2, "kv_cache_tokens"),
    "cpu-fp8kv": (2, "kv_cache_tokens"),
    "cpu-errlevel": (1, None),
    "gpu-cold-compile": (1, "weights_gib"),
    "gpu-tp2-ready-then-hung": (2, "weights_gib"),
}
FAILED = {
    "cpu-badarg": (78, "bad-arguments"),
    "cpu-kvsmall": (78, "kv-cache-too-small"),
    "cpu-missing": (78, "checkpoint-incomplete"),
    "cpu-trunc": (78, "checkpoint-corrupt"),
    "cpu-nopath": (78, "model-not-found"),
    "cpu-tp3": (78, "tensor-parallel-invalid"),
    "cpu-portused": (75, "port-in-use"),
    "gpu-gpubusy": (75, "gpu-busy"),
}
SERVED_THEN_DIED = {"cpu-worker-killed": (75, "worker-killed"), "cpu-eager": (75, "worker-killed")}
HIDDEN = {"cpu-quiet"}


def test_every_captured_log_is_in_a_table():
    assert {path.stem for path in CORPUS.glob("*.log")} == {*READY, *FAILED, *SERVED_THEN_DIED, *HIDDEN}


@pytest.mark.parametrize("name", READY)
def test_a_log_that_becomes_ready(tmp_path, name):
    workers, figure = READY[name]
    fake = {"replay": str(CORPUS / f"{name}.log"), "scale": 0, "in_order": True}
    with running(tmp_path, fake, engine={"args": {"tensor-parallel-size": workers}}) as daemon:
        until_ready(daemon)
        assert figure is None or figure in daemon.status()["figures"]
        daemon.sigterm()
        ended(daemon, 0)


@pytest.mark.parametrize("name", FAILED)
def test_a_log_that_fails(tmp_path, name):
    code, reason = FAILED[name]
    fake = {"fail_with": str(CORPUS / f"{name}.log"), "scale": 0, "in_order": True}
    with running(tmp_path, fake, engine={"args": {"tensor-parallel-size": 2}}) as daemon:
        row = ended(daemon, code, reason)
        assert not told(daemon, "READY")
        assert told(daemon, "STATUS")[-1].startswith(f"Failed: {reason}")
        assert row["class"] == ("permanent" if code == 78 else "transient")


@pytest.mark.parametrize("name", SERVED_THEN_DIED)
def test_a_log_that_served_before_it_died(tmp_path, name):
    code, reason = SERVED_THEN_DIED[name]
    fake = {"fail_with": str(CORPUS / f"{name}.log"), "scale": 0.005, "in_order": True}
    with running(tmp_path, fake, engine={"args": {"tensor-parallel-size": 2}}) as daemon:
        assert daemon.wait_exit() == code
        assert rows(daemon)[-1]["reason"] == reason


def test_a_log_without_the_line_never_becomes_ready_although_the_engine_answers(tmp_path):
    # With --uvicorn-log-level warning the engine served without a word. The line that is added here
    # only quotes the readiness line: it lets the fake listen, and must not open the gate.
    text = (CORPUS / "cpu-quiet.log").read_text()
    quoting = '(APIServer pid=1) INFO 11-30 20:23:30 [logger.py:1] Received request: prompt: "Application startup complete."\n'
    log = tmp_path / "quiet.log"
    log.write_text(text + quoting)
    readiness = {"hidden_line_after_s": 1.5}
    engine = {"args": {"tensor-parallel-size": 2}}  # the check refuses the option that hides the line
    with running(tmp_path, {"replay": str(log), "scale": 0}, readiness=readiness, engine=engine) as daemon:
        daemon.wait(lambda: "Received request" in daemon.log(), "the whole log")
        row = ended(daemon, 78, "readiness-line-hidden")
        assert not told(daemon, "READY")
        assert "--uvicorn-log-level" in row["sentence"]
