"""What breaks a serving engine: a worker killed, the API server killed, a worker that stands still."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import load
from eyes import Nvml
from instance import Instance
from machine import Lab, left_over

KINDS = ("kill-worker", "kill-api", "hang-worker")
ANY = 1 << 60
"""GPU memory that other instances hold at the same time says nothing; the pids do."""


def faults(lab: Lab, nvml: Nvml, model: Path, tp: int, kinds: tuple[str, ...] = KINDS) -> None:
    """Start one instance for each fault, all at once, and break them one after the other."""
    lab.need(60, "faults")
    base, shm = nvml.used(), {file.name for file in Path("/dev/shm").iterdir()}
    args: dict[str, Any] = {}
    if lab.device == "cuda":
        args = {"gpu-memory-utilization": 0.2, "kv-cache-memory-bytes": 4 << 30}
    env = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"} if tp > 1 else {}
    tables = {"smoke": {"on_start": "off"}, **({"liveness": {"hang_after_s": 20}} if lab.fast else {})}
    instances = {
        kind: Instance(lab, kind, model, port=8010 + 10 * number, tp=tp, args=args, env=env, tables=tables)
        for number, kind in enumerate(kinds)
    }
    try:
        for kind, instance in instances.items():
            instance.start()
            if lab.device == "cpu":
                instance.wait_ready(300)
            lab.out.say(f"{kind}: started")
        for kind, instance in instances.items():
            try:
                lab.out.record("fault-ready", fault=kind, seconds=round(instance.wait_ready(240) - instance.began, 2))
            except RuntimeError as error:
                lab.out.record("fault-not-ready", fault=kind, error=str(error)[:1500])
                instance.close()
        for number, kind in enumerate(kinds):
            instance = instances[kind]
            if not instance.exited:
                alone = number == len(kinds) - 1
                try:
                    one(lab, nvml, kind, instance, base if alone else [ANY] * len(base))
                except (OSError, RuntimeError, LookupError, ValueError) as error:
                    lab.out.record("step-failed", step=kind, error=f"{type(error).__name__}: {error}"[:1500])
                    instance.close()
    finally:
        for instance in instances.values():
            instance.close()
    left = sorted({file.name for file in Path("/dev/shm").iterdir()} - shm)
    lab.out.record(
        "faults-left", processes=left_over(lab.work), shm=left, gpu_used_now=nvml.used(), gpu_used_before=base
    )


def one(lab: Lab, nvml: Nvml, kind: str, instance: Instance, base: list[int]) -> None:
    """Break one instance while it generates, and watch it to its end."""
    lab.need(150 if kind == "hang-worker" and not lab.fast else 30, kind)
    with load.Busy(instance.port, 4, 512):
        instance.wait("engine processes", instance.engine_pids, 15)
        # Known to be generating: the counter moves.
        instance.wait("tokens", lambda: _rate(instance) > 0, 40)
        pids = instance.engine_pids()
        victim, role = choose(kind, pids)
        segments = instance.segments(list(pids))
        normal = (time.monotonic() - 3, time.monotonic())
        at = time.monotonic()
        os.kill(victim, signal.SIGSTOP if kind == "hang-worker" else signal.SIGKILL)
        lab.out.say(f"{kind}: pid {victim} ({role})")
        code = instance.wait_exit(150 if kind == "hang-worker" else 60)
    exited = round(instance.exited - at, 3) if instance.exited else None
    word = instance.noticed(at)
    seen = next(((round(when - at, 3), text) for when, text in instance.lines if when > at and "died" in text), None)
    # Of the stretch in which nothing moved: without the first seconds and the last ones.
    still = nvml.window(at + 5, at + (word[0] if word else 10) - 2) if kind == "hang-worker" else []
    lab.out.record(
        "fault", fault=kind, victim=victim, role=role, noticed=word, log=seen, exit_code=code, exit_seconds=exited,
        gpu_free_seconds=nvml.free_since(at, base, set(pids), 20), gpus_before=nvml.window(*normal), gpus_still=still,
        processes_left=[pid for pid in pids if _alive(pid)], shm_left=[s for s in segments if Path(s).exists()],
        told=[{"s": round(when - at, 3), **pairs} for when, _, pairs in instance.notes if when > at][:40],
        history=history(instance), incident=incident(lab, instance, kind),
    )  # fmt: skip


def _rate(instance: Instance) -> float:
    found = instance.metrics()
    return max((v for (n, _), v in found.items() if n == "vllm_supervisor_generation_tokens_per_second"), default=0.0)


def choose(kind: str, pids: dict[int, str]) -> tuple[int, str]:
    """The process to break: the last worker (the engine core where there is none), or the API server."""
    wanted = ("api-server",) if kind == "kill-api" else ("worker", "engine-core")
    for role in wanted:
        found = sorted(pid for pid, name in pids.items() if name == role)
        if found:
            return (found[0] if kind == "kill-api" else found[-1]), role
    raise RuntimeError(f"no process to break among {pids}")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def history(instance: Instance) -> dict[str, Any]:
    """The last row of the instance's history."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(
            sqlite3.connect(f"file:{instance.home / 'state' / 'history.sqlite'}?mode=ro", uri=True)
        ) as db,
    ):
        db.row_factory = sqlite3.Row
        row = db.execute("SELECT * FROM starts ORDER BY id DESC LIMIT 1").fetchone()
        return {key: row[key] for key in row.keys() if key in {"reason", "sentence", "exit_code", "outcome"}}  # noqa: SIM118
    return {}


def incident(lab: Lab, instance: Instance, kind: str) -> dict[str, Any]:
    """The verdict of the last incident; its smaller files go into incidents.txt."""
    found: dict[str, Any] = {}
    for folder in sorted((instance.home / "state" / "incidents").glob("*"))[-1:]:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            text = file.read_text(errors="replace")
            lab.out.line("incidents.txt", f"##### {kind} {file.name} ({len(text)} characters)\n{text[-60_000:]}")
            if file.name == "verdict.json":
                found = json.loads(text)
    return {"files": len(found), "cause": found.get("cause")} if found else found
