"""Moments in an instance's life as /status says them, for the page and the terminal: no daemon is needed to look at them."""

from __future__ import annotations

import math
import time
from typing import Any

from vllm_supervisor.core.account import account
from vllm_supervisor.core.gpu_rows import TROUBLES

GIB = 1 << 30
USUAL = {
    "preflight": 1.2,
    "launching": 21.0,
    "configuring": 14.0,
    "connecting": 16.0,
    "loading-weights": 523.2,
    "compiling": 38.0,
    "sizing-kv-cache": 6.0,
    "capturing-graphs": 21.0,
    "starting-server": 3.0,
    "verifying": 2.4,
}
ACCOUNT = account(USUAL, USUAL, {"checkpoint_bytes": 540 * 10**9, "disk_bytes_per_second": 2.1 * GIB})
NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def gpus(weights_gib: float, power: float, busy: float, lost: int | None = None) -> list[dict[str, Any]]:
    """Eight cards; the memory of the last ones differs a little, and one may be lost."""
    found = []
    for index in range(8):
        engine = int((weights_gib + 0.2 * index) * GIB) if weights_gib else 0
        found.append(
            {
                "index": index,
                "name": NAME,
                "memory_used_bytes": engine + GIB // 2,
                "memory_total_bytes": int(95.6 * GIB),
                "engine_bytes": engine,
                "utilization_ratio": busy,
                "power_watts": power + 3 * index,
                "temperature_celsius": 41.0 + index,
            }
            if index != lost
            else {"index": index, "name": NAME, "trouble": TROUBLES["lost"]}
        )
    return found


def _status(**changes: Any) -> dict[str, Any]:
    return {
        "instance": "kimi",
        "version": "0.1.0",
        "phase": "ready",
        "ready": True,
        "status": "Ready",
        "since_seconds": 10.0,
        "running_seconds": 700.0,
        "began_at": time.time() - 700,
        "attempt": 1,
        "max_attempts": 5,
        "model": "kimi",
        "url": "http://127.0.0.1:8000",
        "progress": 1.0,
        "shards": {"loaded": 119.0, "total": 119.0},
        "eta_seconds": None,
        "phases": {**USUAL, "ready": 55.0},
        "expected": USUAL,
        "account": [],
        "figures": {
            "engine_version": "0.32.0",
            "architecture": "KimiK25ForConditionalGeneration",
            "quantization": "modelopt_fp4",
            "tensor_parallel_size": 8.0,
            "max_model_len": 131072.0,
            "weights_gib": 70.81,
            "load_seconds": 523.225535,
            "kv_cache_gib": 16.5,
            "kv_cache_tokens": 252_112.0,
            "kv_cache_dtype": "auto",
            "attention_backend": "TRITON_MLA",
            "nccl_version": "2.28.9",
        },
        "engine": {"pid": 4711, "alive": True, "processes": {str(4711 + i): "worker" for i in range(10)}},
        "rates": {},
        "requests": {},
        "liveness": {},
        "smoke": None,
        "fault": None,
        "last_failure": "",
        "warnings": [],
        "gpus": gpus(88.0, 320.0, 0.97),
        "at": time.time(),
        **changes,
    }


def loading() -> dict[str, Any]:
    """Nearly half of the shards are there; the workers took long to connect."""
    phases = {"preflight": 1.1, "launching": 22.4, "configuring": 13.1, "connecting": 61.0, "loading-weights": 238.0}
    return _status(
        phase="loading-weights",
        ready=False,
        status="Loading weights: shard 54 of 119 (45 %), about 5 min 56 s left",
        running_seconds=336.0,
        progress=0.486,
        shards={"loaded": 54.0, "total": 119.0},
        eta_seconds=356.0,
        phases=phases,
        figures={"engine_version": "0.32.0", "max_model_len": 131072.0, "tensor_parallel_size": 8.0},
        gpus=gpus(32.4, 96.0, 0.04),
    )


def ready() -> dict[str, Any]:
    """Three requests are answered, one waits."""
    return _status(
        status="Ready: 143.2 tokens/s generated, 512.0 read, 3 running, 1 waiting, context 131072",
        rates={"generation": 143.2, "prompt": 512.0},
        requests={"running": 3.0, "waiting": 1.0, "kv_usage": 0.31},
        account=ACCOUNT,
        liveness={"last_proof_seconds": 0.4, "proof": "tokens", "hung": False, "canary_failures": 0},
        smoke={"passed": True, "verdict": "right: 'The capital of France is Paris.'", "seconds": 6.1},
    )


def degraded() -> dict[str, Any]:
    """A worker is gone; the card that it had does not answer."""
    return _status(
        status="Degraded: worker 5 of the engine is gone (pid 4716, killed by signal 9)",
        rates={"generation": 0.0, "prompt": 0.0},
        requests={"running": 3.0, "waiting": 12.0, "kv_usage": 0.31},
        account=ACCOUNT,
        liveness={"last_proof_seconds": 14.0, "proof": "tokens", "hung": False, "canary_failures": 1},
        smoke={"passed": False, "verdict": "'Paris' is not in the answer: 'The capital'", "seconds": 6.1},
        warnings=["the engine keeps its KV cache in 16 bits although the checkpoint asks for FP8"],
        gpus=gpus(88.0, 140.0, 1.0, lost=5),
    )


def waiting() -> dict[str, Any]:
    """The pause after a second failure."""
    return _status(
        phase="waiting",
        ready=False,
        status="Waiting 12 s before attempt 3 of 5; the last one failed: nccl-error: unhandled cuda error in the first all-reduce",
        running_seconds=8.0,
        attempt=3,
        progress=None,
        shards=None,
        phases={"preflight": 1.0, "waiting": 7.0},
        figures={},
        engine={"pid": None, "alive": False, "processes": {}},
        neighbours=[
            {"needs": {"name": "embed", "metrics": "127.0.0.1:9478"}, "page": {"status": "Ready: 12.4 tokens/s"}}
        ],
        last_failure="nccl-error: unhandled cuda error in the first all-reduce",
        gpus=gpus(0.0, 88.0, 0.0),
    )


FAILURE = {
    "began_at": time.time() - 130,
    "ended_at": time.time() - 70,
    "outcome": "failed",
    "exit_code": 75,
    "reason": "nccl-error",
    "class": "transient",
    "sentence": "nccl-error: unhandled cuda error in the first all-reduce. Look at the kernel's messages of that minute, and set NCCL_DEBUG=INFO in kimi.env for the next start.",
    "incident": "/var/lib/vllm-supervisor/kimi/incidents/20260214T031502",
}

FAILURES = {
    "waiting": FAILURE,
    "degraded": {**FAILURE, "began_at": time.time() - 180_000, "ended_at": time.time() - 179_000},
}
"""The last failure that the history has, by situation."""

SITUATIONS = {"loading": loading, "ready": ready, "degraded": degraded, "waiting": waiting}


def trend(now: float, name: str) -> list[Any]:
    """Ten minutes of serving that end now, with a gap while nothing was known."""
    from vllm_supervisor.daemon.trend import EVERY_S, KEPT_S, Point

    if name not in {"ready", "degraded"}:
        return []
    points = []
    count = int(KEPT_S / EVERY_S)
    for index in range(count):
        at = now - (count - index) * EVERY_S
        rate = max(0.0, 120 + 60 * math.sin(index / 14) + 25 * math.sin(index / 3))
        running, waiting = 3.0 - (index // 40 % 3 == 1), float(index % 60 > 44) * (1 + (index % 60 > 50))
        if name == "degraded" and index > count - 8:
            rate, running, waiting = 0.0, 3.0, 1.0 + 11.0 * (index - count + 8) / 7
        known = not 90 < index < 100
        points.append(Point(at, rate, running, waiting) if known else Point(at, None, None, None))
    return points
