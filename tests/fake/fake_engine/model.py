"""The engine behind the HTTP server: a batch that is decoded step by step, and what it counts.

A step is a round trip through the core and every worker, so that a stopped process stops the
tokens. Gauges change only after a step, as in vLLM: a request that a hung engine swallowed never
shows up as running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .script import Script

BLOCKS = 15_796
FINISHED = ("stop", "length", "abort", "error", "repetition")


class Request:
    """One generation: `tokens` to make; `made` and `finished` are written by the engine."""

    def __init__(self, prompt: int, tokens: int, reason: str) -> None:
        self.prompt, self.tokens, self.reason = prompt, tokens, reason
        self.made = 0
        self.finished = ""  # stop | length | abort | dead
        self.aborted = False
        self.changed = threading.Condition()
        self.arrived = time.monotonic()
        self.prefilled = False

    def wait(self, made: int, timeout: float) -> None:
        """Returns when there are more than `made` tokens, at the end, or after `timeout` seconds."""
        with self.changed:
            if self.made <= made and not self.finished:
                self.changed.wait(timeout)

    def tell(self, finished: str = "") -> None:
        with self.changed:
            self.finished = finished or self.finished
            self.changed.notify_all()


class Counts:
    """What /metrics shows; all token counts are floats because a busy engine is simulated in fractions."""

    def __init__(self) -> None:
        self.created = time.time()
        self.running = self.waiting = self.kv_usage = 0.0
        self.prompt = self.generated = self.steps = 0.0
        self.preemptions = 0.0
        self.finished = dict.fromkeys(FINISHED, 0)
        self.first_token_sum = self.latency_sum = 0.0
        self.http: dict[tuple[str, str, str], int] = {}

    def requests(self) -> int:
        return self.finished["stop"] + self.finished["length"]


class Engine:
    """The batch, in a thread of its own."""

    def __init__(self, script: Script, step: Callable[[], bool]) -> None:
        self.script, self.step = script, step
        self.counts = Counts()
        self.dead = False
        self.closed = False  # shutting down: running requests finish, new ones are refused
        self._open = threading.Event()
        self._open.set()
        self._new = threading.Condition()
        self._queue: list[Request] = []
        self._batch: list[Request] = []
        threading.Thread(target=self._loop, daemon=True).start()

    def submit(self, request: Request) -> None:
        with self._new:
            if self.dead:
                request.finished = "dead"
                return
            self._queue.append(request)
            self._new.notify_all()

    def wake(self) -> None:
        with self._new:
            self._new.notify_all()

    def hang(self) -> None:
        self._open.clear()

    def unhang(self) -> None:
        self._open.set()

    def in_flight(self) -> int:
        return len(self._queue) + len(self._batch)

    def abort_all(self) -> None:
        with self._new:
            for request in (*self._queue, *self._batch):
                request.aborted = True
                request.tell("abort")

    def die(self) -> None:
        """Every request fails; nothing is counted any more."""
        with self._new:
            self.dead = True
            for request in (*self._queue, *self._batch):
                request.tell("dead")
            self._new.notify_all()

    def _idle(self) -> bool:
        return not self._queue and not self._batch and not self.script.busy and not self.dead

    def _loop(self) -> None:
        last = time.monotonic()
        while not self.dead:
            with self._new:
                if self._idle():
                    self._settle()
                    self._new.wait_for(lambda: not self._idle())
                    last = time.monotonic()
            self._open.wait()
            if not self.step():
                self.die()
                return
            self._open.wait()
            now = time.monotonic()
            with self._new:
                self._advance(now, now - last)
            last = now
            time.sleep(self.script.token_delay if self._batch else 0.02)

    def _settle(self) -> None:
        self.counts.running = self.counts.waiting = self.counts.kv_usage = 0.0

    def _advance(self, now: float, spent: float) -> None:
        counts, busy = self.counts, self.script.busy
        while self._queue and len(self._batch) < self.script.max_num_seqs:
            self._batch.append(self._queue.pop(0))
        self._batch = [each for each in self._batch if not self._gone(each)]
        made = 0
        for request in self._batch:
            if not request.prefilled:
                if now - request.arrived < self.script.slow_prefill:
                    counts.kv_usage = min(1.0, counts.kv_usage + 0.0001)
                    continue
                request.prefilled = True
                counts.prompt += request.prompt
                counts.first_token_sum += now - request.arrived
            made += 1
            request.made += 1
            if request.made >= request.tokens:
                counts.finished[request.reason] += 1
                counts.latency_sum += now - request.arrived
                request.tell(request.reason)
            else:
                request.tell()
        self._batch = [each for each in self._batch if not each.finished]
        counts.generated += made
        counts.steps += bool(made)
        if busy:
            tokens = busy.get("tokens_per_s", 0.0) * spent
            counts.generated += tokens
            counts.steps += tokens / max(busy.get("running", 1), 1)
            counts.kv_usage = (counts.kv_usage + busy.get("kv_per_s", 0.0) * spent) % 1.0
        counts.running = len(self._batch) + busy.get("running", 0)
        counts.waiting = len(self._queue) + busy.get("waiting", 0)
        if not busy and all(each.prefilled for each in self._batch):
            counts.kv_usage = sum(each.prompt + each.made for each in self._batch) / (BLOCKS * 16)

    def _gone(self, request: Request) -> bool:
        if request.aborted:
            self.counts.finished["abort"] += 1
            request.tell("abort")
        return request.aborted
