"""One port from the first second: metrics, readiness, status; the control socket says the same."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import pytest

from process.daemon_tools import at_most, ended, rows, running, samples, told, until_ready, value
from process.harness import FAKE, Daemon
from process.waiting import http_get


def test_pages_from_the_first_second_to_tokens_a_second(tmp_path):
    with running(tmp_path, {"pace": "manual"}, engine={"args": {"tensor-parallel-size": 2}}) as daemon:
        daemon.wait_phase("launching")
        page = daemon.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        found = samples(page.text)
        assert value(found, "vllm_supervisor_phase", phase="launching") == 1
        assert value(found, "vllm_supervisor_phase", phase="ready") == 0
        assert value(found, "vllm_supervisor_ready") == 0
        assert not [name for name, _ in found if name.startswith(("vllm:", "process_", "python_"))]

        # A reload needs a ready engine; the refusal is a sentence.
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait(lambda: "reload refused: the engine is launching, not ready" in daemon.log(), "a refusal")

        daemon.control("advance", to="loading-weights")
        daemon.wait(lambda: (daemon.status()["shards"] or {}).get("loaded") == 4, "all shards")
        found = samples(daemon.get("/metrics").text)
        assert value(found, "vllm_supervisor_load_shards", state="loaded") == 4
        assert value(found, "vllm_supervisor_load_shards", state="total") == 4

        daemon.control("finish")
        until_ready(daemon)
        found = samples(daemon.get("/metrics").text)
        assert value(found, "vllm_supervisor_ready") == 1
        assert value(found, "vllm_supervisor_engine_metrics_expected") == 1
        assert value(found, "vllm:num_requests_running", engine="0", model_name="kimi") == 0
        for kind in ("generation", "prompt"):
            for window in ("10s", "60s"):
                name = f"vllm_supervisor_{kind}_tokens_per_second"
                assert value(found, name, window=window) == 0
        assert value(found, "vllm_supervisor_kv_cache_tokens") == 252736
        assert value(found, "vllm_supervisor_engine_processes", role="worker") in {None, 2}
        assert "vllm_supervisor_gpu" not in "".join(name for name, _ in found), "absent without a GPU, never zero"

        ask = {"model": "kimi", "prompt": "count to a hundred", "max_tokens": 200, "ignore_eos": True}
        assert http_get(daemon.engine_port, "/v1/completions", post=ask).status == 200

        def rates() -> bool:
            page = samples(daemon.get("/metrics").text)
            kinds = ("generation", "prompt")
            return all(value(page, f"vllm_supervisor_{k}_tokens_per_second", window="10s") for k in kinds)

        daemon.wait(rates, "tokens a second", 6)
        daemon.wait(lambda: "tokens/s generated" in told(daemon, "STATUS")[-1], "tokens in STATUS", 6)

        status = daemon.status()
        assert (status["phase"], status["ready"], status["model"]) == ("ready", True, "kimi")
        assert status["engine"]["alive"]
        assert sorted(status["engine"]["processes"].values()) == ["api-server", "engine-core", "worker", "worker"]
        same = http_get(daemon.runtime / "control.sock", "/status").json()
        assert same.keys() == status.keys()
        assert (same["phase"], same["began_at"]) == (status["phase"], status["began_at"])
        assert http_get(daemon.runtime / "control.sock", "/readyz").status == 200
        assert "<title>" in daemon.get("/").text
        assert daemon.get("/nothing").status == 404


def test_the_engines_metrics_vanish_when_it_does_not_answer_and_ours_stay(tmp_path):
    with running(tmp_path, {"pace": 0}, liveness={"mode": "off"}) as daemon:
        until_ready(daemon)
        assert "vllm:" in daemon.get("/metrics").text
        os.kill(daemon.control("stats")["pid"], signal.SIGSTOP)
        try:
            daemon.wait(lambda: "vllm:" not in daemon.get("/metrics", timeout=12).text, "a page without the engine's")
            assert value(samples(daemon.get("/metrics", timeout=12).text), "vllm_supervisor_ready") == 1
            began = time.monotonic()
            assert daemon.get("/healthz").status == 200
            assert time.monotonic() - began < at_most(1.0)
        finally:
            os.kill(daemon.status()["engine"]["pid"], signal.SIGCONT)


@pytest.mark.parametrize(
    "settings",
    [
        {"metrics": {"engine": "off"}},
        {"engine": {"args": {"disable-log-stats": True}}},
        {"engine": {"command": [sys.executable, str(FAKE), "serve", "--disable-log-stats"]}},
    ],
    ids=["metrics.engine", "engine.args", "engine.command"],
)
def test_settings_that_leave_out_the_engines_metrics_are_told(tmp_path, settings):
    with running(tmp_path, {"pace": 0}, liveness={"mode": "off"}, **settings) as daemon:
        until_ready(daemon)
        found = samples(daemon.get("/metrics").text)
        assert not [name for name, _ in found if name.startswith("vllm:")]
        assert value(found, "vllm_supervisor_engine_metrics_expected") == 0


def test_a_busy_metrics_port_does_not_keep_the_model_down(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with running(tmp_path, {"pace": 0}, metrics={"listen": f"127.0.0.1:{port}"}) as daemon:
            until_ready(daemon)
            note = f"the metrics port 127.0.0.1:{port} cannot be served: address already in use"
            assert daemon.notify
            daemon.notify.wait_for(
                lambda pairs: pairs.get("STATUS", "").startswith("Ready") and note in pairs["STATUS"]
            )
            socket_path = daemon.runtime / "control.sock"
            assert http_get(socket_path, "/readyz").status == 200, "the control socket does not need the port"
            holder.close()
            daemon.wait(lambda: daemon.status().get("ready"), "the port, once it is free", 5)
            daemon.wait(lambda: "cannot be served" not in told(daemon, "STATUS")[-1], "a STATUS without the note", 5)
            daemon.wait(lambda: f"the metrics port is served now (port {port})" in daemon.log(), "a word about it")


def test_a_second_supervisor_of_an_instance_is_refused(tmp_path):
    with running(tmp_path, {"pace": "manual"}) as first:
        first.wait_phase("launching")
        second = Daemon(first.config, tmp_path, notify=False)
        second.err = tmp_path / "second.err"
        with second:
            assert second.wait_exit() == 75
            said = second.err.read_text()
            assert said == (f"vllm-supervisor: fake is already supervised by pid {first.pid}; stop that one first\n")
            assert first.process
            # The harness ends every process of the second one, which has none; the first one lives on.
            assert first.process.poll() is None
        assert len(rows(first)) == 1
    assert told(first, "STATUS")


def test_a_smoke_question_with_the_right_answer_is_shown(tmp_path):
    with running(tmp_path, {"pace": 0}, smoke={"on_start": "require", "max_tokens": 64}) as daemon:
        until_ready(daemon)
        assert daemon.status()["smoke"]["passed"] is True
        seen = samples(daemon.get("/metrics").text)
        assert value(seen, "vllm_supervisor_smoke_success") == 1
        assert value(seen, "vllm_supervisor_smoke_verdict", verdict="right") == 1
        assert value(seen, "vllm_supervisor_smoke_verdict", verdict="wrong") == 0
        assert 0 < value(seen, "vllm_supervisor_smoke_first_token_seconds") < 60
        daemon.sigterm()
        ended(daemon, 0)
    with running(tmp_path, {"pace": 0, "answer": "Lyon.", "reasoning": ""}, smoke={"on_start": "require"}) as daemon:
        row = ended(daemon, 75, "smoke-failed")
        assert "'Paris' is not in the answer" in row["sentence"]
        assert not told(daemon, "READY")
