"""`systemctl start kimi` with a real vLLM, two workers, in the unit's sandbox: it returns when the model can answer."""

from __future__ import annotations

import json
import threading
import time
from typing import Self

import pytest

from lab.tiny_model import ANSWER, QUESTION, THOUGHT
from system.scraped import prometheus_understands
from system.service import Service

pytestmark = pytest.mark.timeout(600)


class StatusWatch:
    """Every StatusText that the unit shows while something goes on, with the time of its first sight."""

    def __init__(self, service: Service) -> None:
        self.seen: dict[str, float] = {}
        self._service = service
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._end.wait(0.2):
            text = self._service.show("StatusText").get("StatusText", "")
            if text:
                self.seen.setdefault(text, time.monotonic())


@pytest.fixture
def running(service: Service, engine, tiny_model):
    service.real(engine, tiny_model)
    with StatusWatch(service) as watch:
        done = service.start()
    assert done.returncode == 0, done.stderr + service.journal()
    return service, watch


def the_smoke_test_streams(service: Service) -> None:
    """Both texts and both figures of a real engine's stream, also when the answer had to be asked for twice."""
    for room, twice in ((64, False), (8, True)):
        done = service.machine.run(
            ["vllm-supervisor", "smoke", "kimi", "--json", "--max-tokens", str(room)], check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout)
        assert (said["verdict"], said["finish"], said["content"].strip()) == ("right", "stop", ANSWER)
        assert said["reasoning"].strip() == THOUGHT
        assert 16 < said["tokens"] <= 64
        assert 0 < said["first_token_s"] < said["seconds"]
        # More than its tokens over the time of both requests: the figures are those of the second one alone. Of a
        # single request either may be more, as its first token comes sooner or later than the others follow.
        assert not twice or said["tokens_per_s"] > said["tokens"] / said["seconds"]

    def told() -> dict[str, str]:
        return json.loads(service.get("/status")[1]).get("smoke") or {}

    asked = service.wait("the smoke test after READY", told, 60)
    assert asked["verdict"].startswith("right: ")
    assert asked["pace"].startswith("first token after ")


def test_start_returns_when_it_can_answer_and_stop_leaves_nothing(running) -> None:
    service, watch = running
    began = time.monotonic()
    status, answer = service.chat(QUESTION)
    first_chat = time.monotonic() - began
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    assert message["content"].strip() == ANSWER
    # The first real request was made before READY: this one finds a warm engine.
    assert first_chat < 15, first_chat
    phases = {text.split(",")[0].split(":")[0] for text in watch.seen}
    assert len(phases) >= 3, watch.seen

    the_smoke_test_streams(service)
    code, metrics = service.get("/metrics")
    assert code == 200
    assert "vllm_supervisor_ready 1.0" in metrics
    assert "vllm:generation_tokens_total{" in metrics
    assert 'vllm_supervisor_generation_tokens_per_second{window="10s"}' in metrics
    assert 'vllm_supervisor_engine_processes{role="worker"} 2.0' in metrics
    assert service.get("/readyz")[0] == 200
    prometheus_understands(service)
    shown = service.machine.run(["systemctl", "status", "kimi", "--no-pager"]).stdout
    assert "Ready" in shown
    assert service.machine.run("ps -u vllm -o comm=").stdout.count("VLLM::Worker") == 2

    began = time.monotonic()
    service.stop()
    assert time.monotonic() - began < 20
    ended = service.wait_state("inactive")
    assert ended["Result"] == "success", ended
    assert service.left_over() == ""
    assert service.machine.run("ls /dev/shm").stdout.strip() == ""


def test_a_stop_during_the_load_is_not_lost(service: Service, engine, tiny_model) -> None:
    service.real(engine, tiny_model)
    service.start(block=False)
    service.wait_status("Connecting the workers", timeout=120)
    began = time.monotonic()
    service.stop()
    took = time.monotonic() - began
    ended = service.wait_state("inactive", "failed")
    assert (ended["ActiveState"], ended["Result"], ended["ExecMainStatus"]) == ("inactive", "success", "0"), (
        service.journal()
    )
    assert took < 40, took
    assert service.left_over() == ""
