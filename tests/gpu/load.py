"""Requests to an engine: one that notes when each token came, many that keep it busy, and a GPU kept hot."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import threading
import time
from typing import Any, Self

QUESTION = "What is the capital of France? Answer in one sentence."


def post(port: int, path: str, body: dict[str, Any], timeout: float = 120.0) -> tuple[int, dict[str, Any]]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(link):
        link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = link.getresponse()
        raw = reply.read()
    try:
        return reply.status, json.loads(raw)
    except ValueError:
        return reply.status, {"raw": raw[:500].decode(errors="replace")}


def chat(port: int) -> dict[str, Any]:
    """A chat completion, with its time."""
    began = time.monotonic()
    body = {"model": "kimi", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 256}
    status, answer = post(port, "/v1/chat/completions", body)
    message = (answer.get("choices") or [{}])[0].get("message", {})
    return {
        "status": status, "seconds": round(time.monotonic() - began, 3), "content": message.get("content"),
        "reasoning": message.get("reasoning") or message.get("reasoning_content"), "usage": answer.get("usage"),
    }  # fmt: skip


class Stream(threading.Thread):
    """One long streamed completion; every piece with its time."""

    def __init__(self, port: int, tokens: int) -> None:
        super().__init__(daemon=True)
        self.port, self.tokens = port, tokens
        self.times: list[float] = []
        self.finish, self.error, self.done_at = "", "", 0.0

    def run(self) -> None:
        body = {
            "model": "kimi", "prompt": QUESTION, "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0,
            "stream": True,
        }  # fmt: skip
        try:
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            link.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = link.getresponse()
            for raw in reply:
                if raw.startswith(b"data: {"):
                    self.times.append(time.monotonic())
                    choice = (json.loads(raw[6:]).get("choices") or [{}])[0]
                    self.finish = choice.get("finish_reason") or self.finish
            link.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        self.done_at = time.monotonic()

    def longest_gap(self) -> float:
        gaps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return round(max(gaps, default=0.0), 3)


class Busy:
    """Some completions at once, again and again; what the clients got is counted."""

    def __init__(self, port: int, streams: int, tokens: int) -> None:
        self.port, self.tokens, self.stop = port, tokens, threading.Event()
        self.got, self.errors = 0, 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(streams)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def _run(self) -> None:
        body = {"model": "kimi", "prompt": QUESTION, "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0.8}
        while not self.stop.is_set():
            try:
                status, answer = post(self.port, "/v1/completions", body, 90)
                if status == 200:
                    self.got += int(answer["usage"]["completion_tokens"])
                else:
                    self.errors += 1
                    self.stop.wait(0.2)
            except (OSError, KeyError, http.client.HTTPException):
                self.errors += 1
                self.stop.wait(0.2)

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(15)


HOT = """
import sys, time, torch
device, seconds = int(sys.argv[1]), float(sys.argv[2])
a = torch.randn(8192, 8192, device=f"cuda:{device}", dtype=torch.bfloat16)
print("hot", flush=True)
until = time.monotonic() + seconds
while time.monotonic() < until:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""

HOLD = """
import sys, time, torch
gib = float(sys.argv[1])
held = torch.empty(int(gib * 2**30), device="cuda:0", dtype=torch.uint8)
torch.cuda.synchronize()
print("held", flush=True)
time.sleep(600)
"""


def helper(python: str, code: str, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A small program of ours on a GPU, once it says that it runs."""
    process = subprocess.Popen([python, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout
    process.stdout.readline()
    return process
