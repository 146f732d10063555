"""The fake's HTTP: shapes, task, counters, hangs."""

from __future__ import annotations

import json
import re
import ssl
import subprocess

import pytest

from process.fakes import Fake
from process.waiting import http_get

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def metric(fake, name):
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", fake.get("/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.fixture
def serving(tmp_path):
    with Fake(tmp_path, "--reasoning-parser", "kimi_k2", load="none") as fake:
        fake.wait_ready()
        yield fake


def test_has_the_shapes_of_the_small_endpoints(serving):
    health = serving.get("/health")
    assert (health.status, health.body, health.headers["content-length"]) == (200, b"", "0")
    assert "content-type" not in health.headers
    models = serving.get("/v1/models").json()
    assert models["object"] == "list"
    assert [(card["id"], card["root"], card["owned_by"]) for card in models["data"]] == [("kimi", "tiny", "vllm")]
    assert serving.get("/version").json() == {"version": "0.32.0"}
    assert serving.get("/load").json() == {"server_load": 0}
    assert serving.get("/nothing").json() == {"detail": "Not Found"}
    assert serving.get("/v1/completions").status == 405
    assert serving.get("/tokenize", post={"prompt": "a b c"}).json()["count"] == 3
    assert serving.get("/v1/embeddings", post={"input": "x"}).status == 404
    assert serving.printed('"GET /health HTTP/1.1" 200 OK')


def test_makes_one_token_and_counts_it(serving):
    reply = serving.get("/v1/completions", post={"model": "kimi", "prompt": "The capital of", "max_tokens": 1}).json()
    assert reply["object"] == "text_completion"
    assert (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == ("length", 1)
    assert metric(serving, "vllm:generation_tokens_total") == 1
    assert metric(serving, "vllm:prompt_tokens_total") == 3
    assert metric(serving, "vllm:iteration_tokens_total_count") == 1
    assert (
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="kimi"} 1.0'
        in serving.get("/metrics").text
    )


def test_reasons_first_and_cuts_at_max_tokens(serving):
    whole = serving.get("/v1/chat/completions", post={"messages": QUESTION, "max_tokens": 256}).json()["choices"][0]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("stop", " The capital of France is Paris.".strip())
    assert whole["message"]["reasoning"].startswith("The user asks")
    cut = serving.get("/v1/chat/completions", post={"messages": QUESTION, "max_tokens": 26}).json()["choices"][0]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", "The capital")
    inside = serving.get("/v1/chat/completions", post={"messages": QUESTION, "max_tokens": 3}).json()["choices"][0]
    assert (inside["finish_reason"], inside["message"]["content"]) == ("length", None)


def test_streams_the_same_words(serving):
    reply = serving.get("/v1/chat/completions", post={"messages": QUESTION, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0] for event in events]
    assert "".join(each["delta"].get("content") or "" for each in deltas) == "The capital of France is Paris."
    assert "".join(each["delta"].get("reasoning") or "" for each in deltas).startswith("The user asks")
    assert deltas[-1]["finish_reason"] == "stop"


def test_refuses_another_model_and_broken_http(serving):
    reply = serving.get("/v1/completions", post={"model": "other", "prompt": "x"})
    assert (reply.status, reply.json()["error"]["type"]) == (404, "NotFoundError")
    assert serving.get("/v1/chat/completions", post={"model": "kimi"}).status == 400


def test_works_as_the_real_parser_reads_it(serving):
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(serving.get("/metrics").text)}
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:num_requests_running"].type == "gauge"
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert families["vllm:cache_config_info"].samples[0].labels["kv_cache_size_tokens"] == "252736"


def test_has_no_engine_metrics_without_log_stats(tmp_path):
    with Fake(tmp_path, "--disable-log-stats", load="none") as fake:
        fake.wait_ready()
        assert "vllm:" not in fake.get("/metrics").text
        assert "process_start_time_seconds" in fake.get("/metrics").text


def test_asks_for_the_key_on_guarded_paths_only(tmp_path):
    with Fake(tmp_path, "--root-path", "/pfx", load="none", env={"VLLM_API_KEY": "s3cret"}) as fake:
        fake.wait_ready()
        assert fake.get("/health").status == 200
        assert (fake.get("/v1/models").status, fake.get("/pfx/v1/models").json()) == (401, {"error": "Unauthorized"})
        assert fake.get("/pfx/v1/models", headers={"Authorization": "Bearer s3cret"}).status == 200


def test_serves_on_a_unix_socket(tmp_path):
    path = tmp_path / "s"
    with Fake(tmp_path, "--uds", str(path), tcp=False, load="none") as fake:
        fake.wait_ready()
        assert http_get(path, "/health").status == 200
        fake.term()
        assert fake.wait_exit() == 0
        assert path.exists()


def test_serves_tls(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(cert),
        ],
        check=True,
        capture_output=True,
    )
    with Fake(tmp_path, "--ssl-keyfile", str(key), "--ssl-certfile", str(cert), load="none") as fake:
        fake.wait_ready()
        assert fake.get("/health", tls=ssl.create_default_context(cafile=str(cert))).status == 200
        with pytest.raises(OSError, match=r"reset|closed|without"):
            fake.get("/health")


def test_embeds_and_scores_by_task(tmp_path):
    with Fake(tmp_path, load="none", tasks=["embed", "score"]) as fake:
        fake.wait_ready()
        assert fake.get("/v1/embeddings", post={"model": "kimi", "input": ["a", "b"]}).json()["data"][1]["embedding"]
        assert fake.get("/score", post={"model": "kimi", "text_1": "a", "text_2": "b"}).json()["data"][0]["score"] > 0
        assert (
            fake.get("/rerank", post={"model": "kimi", "query": "a", "documents": ["b", "c"]}).json()["results"][1][
                "document"
            ]["text"]
            == "c"
        )
        assert fake.get("/v1/completions", post={"model": "kimi", "prompt": "x"}).status == 404


def test_old_metric_names(tmp_path):
    with Fake(tmp_path, load="none", version="0.10.0") as fake:
        fake.wait_ready()
        text = fake.get("/metrics").text
    assert "vllm:gpu_cache_usage_perc{" in text
    assert "vllm:time_per_output_token_seconds_count{" in text
    assert "vllm:inter_token_latency_seconds" not in text
