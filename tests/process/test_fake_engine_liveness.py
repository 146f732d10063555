"""The fake that is alive and not healthy, or busy and healthy: hangs, slow answers, moving and frozen counters."""

from __future__ import annotations

import os
import re
import time

import pytest

from process.fakes import Fake


def metric(fake, name):
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", fake.get("/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.fixture
def serving(tmp_path):
    with Fake(tmp_path, "--reasoning-parser", "kimi_k2", load="none") as fake:
        fake.wait_ready()
        yield fake


def test_health_hangs_or_lies_on_command(serving):
    serving.control("set", values={"hang_health": True})
    with pytest.raises(TimeoutError):
        serving.get("/health", timeout=0.2)
    serving.control("set", values={"hang_health": False, "health_status": 503})
    assert serving.get("/health").status == 503
    serving.control("set", values={"served_model": "stranger"})
    assert serving.get("/v1/models").json()["data"][0]["id"] == "stranger"


def test_generation_hangs_is_slow_or_fails_on_command(serving):
    ask = {"post": {"prompt": "x", "max_tokens": 1}}
    serving.control("set", values={"generate_hangs": True})
    with pytest.raises(TimeoutError):
        serving.get("/v1/completions", timeout=0.2, **ask)
    serving.control("set", values={"generate_hangs": False, "generate_delay": 0.2})
    before = time.monotonic()
    assert serving.get("/v1/completions", **ask).status == 200
    assert time.monotonic() - before >= 0.2
    serving.control("set", values={"generate_delay": 0, "generate_status": 500})
    assert serving.get("/v1/completions", **ask).status == 500


def test_only_the_first_request_is_slow(tmp_path):
    with Fake(tmp_path, load="none", first_generate_delay=0.3) as fake:
        fake.wait_ready()
        times = []
        for _ in range(2):
            before = time.monotonic()
            fake.get("/v1/completions", post={"prompt": "x", "max_tokens": 1})
            times.append(time.monotonic() - before)
    assert times[0] >= 0.3 > times[1]


def test_a_hung_engine_swallows_requests_while_health_is_fine(serving):
    serving.control("hang")
    with pytest.raises(TimeoutError):
        serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 1}, timeout=0.3)
    assert serving.get("/health").status == 200
    assert metric(serving, "vllm:num_requests_running") == 0
    assert metric(serving, "vllm:generation_tokens_total") == 0
    serving.control("unhang")
    assert (
        serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 2}).json()["usage"]["completion_tokens"] == 2
    )


@pytest.mark.parametrize("who", ["core", "worker"])
def test_a_stopped_process_hangs_the_engine(serving, who):
    stats = serving.stats()
    pid = stats["core"] if who == "core" else stats["workers"][0]
    os.kill(pid, 19)
    with pytest.raises(TimeoutError):
        serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 1}, timeout=0.3)
    assert serving.get("/health").status == 200
    os.kill(pid, 18)
    assert serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 1}).status == 200


def test_a_busy_engine_moves_its_counters_and_stops_with_a_hang(serving):
    serving.control("set", values={"busy": {"running": 4, "waiting": 9, "tokens_per_s": 500}})
    serving.wait(lambda: metric(serving, "vllm:generation_tokens_total") > 10, "moving tokens")
    assert (metric(serving, "vllm:num_requests_running"), metric(serving, "vllm:num_requests_waiting")) == (4, 9)
    os.kill(serving.stats()["workers"][0], 19)
    serving.wait(
        lambda: metric(serving, "vllm:generation_tokens_total") == metric(serving, "vllm:generation_tokens_total"),
        "a standstill",
    )
    assert metric(serving, "vllm:num_requests_running") == 4


def test_a_long_prefill_moves_only_the_cache(serving):
    serving.control("set", values={"busy": {"running": 1, "kv_per_s": 0.5}})
    serving.wait(lambda: metric(serving, "vllm:kv_cache_usage_perc") > 0.02, "growing cache usage")
    assert metric(serving, "vllm:generation_tokens_total") == 0
    serving.control("set", values={"busy": {}, "slow_prefill": 0.3})
    before = time.monotonic()
    assert serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 1}).status == 200
    assert time.monotonic() - before >= 0.3


def test_frozen_metrics_stay_while_tokens_are_made(serving):
    assert metric(serving, "vllm:generation_tokens_total") == 0
    serving.control("set", values={"metrics_frozen": True})
    serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 3})
    assert metric(serving, "vllm:generation_tokens_total") == 0
    assert serving.stats()["generated"] == 3


def test_counts_a_client_that_hangs_up_as_aborted(serving):
    serving.control("set", values={"token_delay": 0.05})
    with pytest.raises(TimeoutError):
        serving.get("/v1/completions", post={"prompt": "x", "max_tokens": 1000}, timeout=0.2)
    serving.wait(lambda: 'finished_reason="abort",model_name="kimi"} 1.0' in serving.get("/metrics").text, "the abort")
    assert metric(serving, "vllm:num_requests_running") == 0
