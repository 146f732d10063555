"""The probe follows the engine's own arguments and task, and every form of the readiness line counts."""

from __future__ import annotations

import subprocess

import pytest

from process.daemon_tools import ended, running, until_ready


def certificate(folder):
    """A key and a certificate for a public name, as an operator's are."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=llm.example"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True, timeout=30)
    return {"ssl-keyfile": str(key), "ssl-certfile": str(cert)}


@pytest.mark.parametrize("way", ["tls", "uds", "root-path", "api-key", "all-interfaces"])
def test_an_engine_is_reached_the_way_that_its_arguments_say(tmp_path, way):
    args = {
        "tls": lambda: certificate(tmp_path),
        "uds": lambda: {"uds": str(tmp_path / "engine.sock")},
        "root-path": lambda: {"root-path": "/llm"},
        "api-key": lambda: {"api-key": "sk-of-the-arguments"},
        "all-interfaces": dict,
    }[way]()
    host = {"host": "0.0.0.0"} if way == "all-interfaces" else {}
    with running(tmp_path, {"pace": 0}, engine={"args": args, **host}, smoke={"on_start": "require"}) as daemon:
        until_ready(daemon)
        assert b"vllm:num_requests_running" in daemon.get("/metrics").body
        daemon.sigterm()
        ended(daemon, 0)


@pytest.mark.parametrize(
    "fake",
    [
        {"readiness_line_form": "json"},
        {"readiness_line_form": "rust"},
        {"readiness_line_form": "prefixed"},
        {"style": "json"},
        {"version": "0.10.0"},
        {"version": "0.11.0"},
        {"version": "0.18.1"},
    ],
    ids=lambda fake: "-".join(fake.values()),
)
def test_every_form_of_the_readiness_line_counts(tmp_path, fake):
    with running(tmp_path, {"pace": 0, **fake}, engine={"args": {"tensor-parallel-size": 2}}) as daemon:
        until_ready(daemon)
        figures = daemon.status()["figures"]
        assert figures["weights_gib"] == 3.21
        assert figures["kv_cache_tokens"] == 252736


@pytest.mark.parametrize("task", ["embed", "score"])
@pytest.mark.parametrize("told", [True, False], ids=["configured", "found-out"])
def test_a_pooling_model_is_asked_in_its_own_way(tmp_path, task, told):
    readiness = {"readiness": {"probe": task}} if told else {}
    with running(tmp_path, {"pace": 0, "tasks": [task]}, smoke={"on_start": "report"}, **readiness) as daemon:
        until_ready(daemon)
        path = {"embed": "/v1/embeddings", "score": "/score"}[task]
        daemon.wait(lambda: f'"POST {path} HTTP/1.1" 200' in daemon.log(), "the request in the engine's log")
        asked = "" if told else daemon.wait(lambda: daemon.status().get("smoke"), "the smoke test")["verdict"]
        assert asked == ("" if told else f"not asked: this engine is there to {task}, it has no chat")
