"""A real vLLM with two workers: a full one is never called hung, a hung one is named, and an upgrade disturbs nobody.

One engine serves all three, because its start is what takes the time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from system.service import ENGINE_PORT, Service
from system.striking import STATE, Strikes

SECONDS = float(os.environ.get("SATURATE_SECONDS", "150"))
HANG_AFTER_S = 8.0
LONG = {"max-model-len": 65536, "max-num-batched-tokens": 65536, "max-num-seqs": 2}
LOAD = Path(__file__).parents[1] / "soak" / "load.py"
CONFIG = "/etc/vllm-supervisor/kimi.toml"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def kimi(product, engine, tiny_model):
    """kimi.service with a real engine that serves; a hang is named after a short time."""
    service = Service(product)
    service.reset()
    service.real(
        engine,
        tiny_model,
        args=LONG,
        liveness={"hang_after_s": HANG_AFTER_S, "canary_every_s": 3.0},
        retry={"first_wait_s": 1.0, "max_wait_s": 1.0},
    )
    text = (product.root / CONFIG.lstrip("/")).read_text()
    product.put(text.replace("[engine.env]\n", '[engine.env]\nVLLM_ALLOW_LONG_MAX_MODEL_LEN = "1"\n'), CONFIG)
    product.put(LOAD, "/srv/load.py")
    done = service.start(timeout=900)
    assert done.returncode == 0, done.stderr + service.journal()
    yield service
    service.reset()


def ask(service: Service, tokens: int, answers: list[str]) -> threading.Thread:
    """A request beside the test; what it was answered lands in `answers`."""
    body = json.dumps({"model": "kimi", "prompt": "count", "max_tokens": tokens, "ignore_eos": True})
    command = ["curl", "-s", "-m", "300", "-H", "Content-Type: application/json", "-d", body]

    def run() -> None:
        url = f"http://127.0.0.1:{ENGINE_PORT}/v1/completions"
        answers.append(service.machine.run([*command, url], check=False, timeout=320).stdout)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    strikes = Strikes(service)
    service.wait("the request runs", lambda: strikes.status().get("requests", {}).get("running"), 60)
    return thread


def prefills_longer_than(service: Service, seconds: float) -> float:
    """How many prefills took longer than that; `seconds` is a bound of the engine's own histogram."""
    code, page = service.get("/metrics", ENGINE_PORT)
    assert code == 200
    name = "vllm:request_prefill_time_seconds"
    lines = [line for line in page.splitlines() if line.startswith((f"{name}_bucket", f"{name}_count"))]
    count = sum(float(line.rsplit(" ", 1)[1]) for line in lines if "_count" in line)
    within = sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'le="{seconds}"' in line)
    assert lines
    assert any(f'le="{seconds}"' in line for line in lines)
    return count - within


def test_a_reload_in_the_middle_of_a_request(kimi: Service) -> None:
    strikes, machine = Strikes(kimi), kimi.machine
    before, pid = strikes.status(), kimi.show("MainPID")["MainPID"]
    answers: list[str] = []
    thread = ask(kimi, 3000, answers)
    done = machine.run(["systemctl", "reload", "kimi"], check=False, timeout=120)
    assert done.returncode == 0, done.stderr + kimi.journal()
    assert not answers, "the request was over before the reload was"
    thread.join(300)
    assert json.loads(answers[0])["usage"]["completion_tokens"] == 3000
    after = strikes.status()
    assert (kimi.show("MainPID")["MainPID"], after["engine"]["pid"]) == (pid, before["engine"]["pid"])
    assert (after["reloads"], after["began_at"]) == (1, before["began_at"])

    good = (machine.root / CONFIG.lstrip("/")).read_text()
    machine.put(good + "\n[livenes]\nmode = 1\n", CONFIG)
    done = machine.run(["systemctl", "reload", "kimi"], check=False, timeout=120)
    machine.put(good, CONFIG)
    assert done.returncode != 0
    assert "livenes: unknown table; did you mean [liveness]?" in kimi.journal(30)
    assert kimi.show("ActiveState")["ActiveState"] == "active"


def test_a_full_engine_on_a_busy_host_is_never_called_hung(kimi: Service) -> None:
    strikes = Strikes(kimi)
    before = strikes.status()
    done = kimi.machine.run(["/usr/bin/python3", "/srv/load.py", str(SECONDS), "saturate"], timeout=SECONDS + 120)
    report = json.loads(done.stdout)
    # It means something only when the engine was full, and a prefill longer than the patience with a quiet engine.
    assert prefills_longer_than(kimi, 10.0) > 0, report
    assert report["counts"].get("queue answered", 0) > 0, report
    after = strikes.status()
    assert "engine-hung" not in kimi.journal(100_000), report
    assert after["engine"]["pid"] == before["engine"]["pid"]
    assert kimi.show("NRestarts")["NRestarts"] == "0"
    assert after["liveness"]["hung"] is False
    assert kimi.get("/readyz")[0] == 200


def test_a_stopped_worker_under_a_request_is_named_and_the_model_comes_back(kimi: Service) -> None:
    strikes = Strikes(kimi)
    answers: list[str] = []
    ask(kimi, 60_000, answers)
    status, before = strikes.status(), strikes.restarts()
    at = strikes.signal(status, "worker", "STOP")
    kimi.wait_status("engine-hung", timeout=120)
    named = time.monotonic() - at
    sentence = strikes.ends(before, 120)
    assert "engine-hung" in sentence
    assert "(exit 75)" in sentence
    assert named < HANG_AFTER_S + 25.0
    strikes.gone(status)
    assert kimi.machine.run(f"ls -d {STATE}/incidents/*engine-hung").stdout.strip()
    assert "vllm" in kimi.machine.run(f"cat {STATE}/incidents/*engine-hung/stacks.txt").stdout
    kimi.wait_state("active", timeout=900)

    # The same with nothing to do: only the canary can tell.
    kimi.wait_status("Ready", timeout=60)
    status, before = strikes.status(), strikes.restarts()
    at = strikes.signal(status, "engine-core", "STOP")
    kimi.wait_status("engine-hung", timeout=120)
    assert time.monotonic() - at < HANG_AFTER_S + 25.0
    assert "engine-hung" in strikes.ends(before, 120)
    strikes.gone(status)
