"""What the benchmarks share: a row, the first answer that was possible, the shell loop that people write."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

# A real engine with two workers, the product's shape; the CPU build's lone worker dies (SIGILL) where AMX is told of
# and not to be had.
REAL_ARGS = {"tensor-parallel-size": 2, "max-model-len": 1024, "enforce-eager": True, "max-num-seqs": 4}
REAL_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",  # two workers on one NUMA node cannot be placed by vLLM itself
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class Row(NamedTuple):
    """One row of the table; the last four are for the picture, which leaves a row without `limit` out.

    Attributes:
        value: What was measured, in the unit of `limit`.
        other: The same of what stands beside it, if it is the same quantity.
        limit: The target.
        more: Whether more is better.
    """

    what: str
    measured: str
    beside: str
    target: str
    value: float | None = None
    other: float | None = None
    limit: float | None = None
    more: bool = False

    @property
    def words(self) -> tuple[str, str, str, str]:
        """The columns of the table."""
        return self[:4]


class Moment:
    """A moment that a thread waits for."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.stop = threading.Event()
        self._seen = threading.Event()

    def now(self) -> None:
        self.at = time.monotonic()
        self._seen.set()

    def wait(self, limit: float) -> float:
        """When it came, in monotonic seconds; an AssertionError when it does not come in time."""
        assert self._seen.wait(limit), f"nothing came within {limit:g} s"
        assert self.at is not None
        return self.at


@contextlib.contextmanager
def _in_thread(moment: Moment, target) -> Iterator[Moment]:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        yield moment
    finally:
        moment.stop.set()
        thread.join(30)


@contextlib.contextmanager
def first_answer(port: int, model: str) -> Iterator[Moment]:
    """When the engine first answered a request for one token, asked again and again without a pause."""
    moment = Moment()
    body = json.dumps({"model": model, "prompt": "Hi", "max_tokens": 1})

    def ask() -> None:
        while not moment.stop.is_set() and moment.at is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                if connection.getresponse().status == 200:
                    moment.now()
            except (OSError, http.client.HTTPException):
                time.sleep(0.005)
            finally:
                connection.close()

    with _in_thread(moment, ask) as started:
        yield started


@contextlib.contextmanager
def shell_loop(port: int) -> Iterator[Moment]:
    """When the loop that people write would have gone on: `until curl -sf …/health; do sleep 1; done`."""
    moment = Moment()
    script = f"until curl -sf -o /dev/null http://127.0.0.1:{port}/health; do sleep 1; done"

    def loop() -> None:
        child = subprocess.Popen(["sh", "-c", script], start_new_session=True)
        while child.poll() is None and not moment.stop.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()
        else:
            moment.now()

    with _in_thread(moment, loop) as started:
        yield started
