"""The first proofs: a start to READY, answers, rates, memory; an upgrade in place; a stop."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import load
from eyes import Nvml
from instance import Instance
from machine import Lab, left_over, smi

SHM = Path("/dev/shm")
AVERAGE = re.compile(r"Avg generation throughput: ([\d.]+) tokens/s")


def serve(lab: Lab, nvml: Nvml, model: Path, tp: int, *, timeout: float = 330) -> tuple[Instance, dict[str, Any]]:
    """A ready instance, and what was there before it: GPU memory and shared memory."""
    before = {"used": nvml.used(), "shm": {file.name for file in SHM.iterdir()}}
    env = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_DEBUG": "INFO"} if tp > 1 else {}
    instance = Instance(lab, "serve", model, port=8000, tp=tp, env=env).start()
    try:
        ready = instance.wait_ready(timeout)
    except RuntimeError as error:
        lab.out.record("serve-failed", seccomp=lab.seccomp, error=str(error)[:1500])
        instance.close()
        if not lab.seccomp:
            raise
        lab.seccomp = False
        return serve(lab, nvml, model, tp, timeout=timeout)
    told, last = [], ""
    for at, pid, pairs in list(instance.notes):
        head = re.split(r"[:;,(]", pairs.get("STATUS", ""))[0]
        if (head and head != last) or "READY" in pairs:
            told.append({"s": round(at - instance.began, 3), "from": pid, **pairs})
            last = head or last
    status = instance.status()
    line = next((at for at, text in instance.lines if "Application startup complete" in text), None)
    lab.out.record(
        "ready", seconds=round(ready - instance.began, 3), tp=tp, seccomp=lab.seccomp, user_is_root=False,
        startup_line_seconds=round(line - instance.began, 3) if line else None,
        daemon_pid=instance.process and instance.process.pid, phases=status.get("phases"),
        figures=status.get("figures"), processes=status.get("engine"), told=told,
    )  # fmt: skip
    return instance, before


def answers(lab: Lab, instance: Instance) -> None:
    """A chat completion, and the smoke test's word."""
    lab.out.record("chat", **load.chat(instance.port))
    time.sleep(1)
    lab.out.record("smoke", smoke=instance.status().get("smoke"))


def memory(lab: Lab, instance: Instance) -> None:
    """GPU memory and the engine's share, ours and nvidia-smi's between two looks of ours."""
    first = _gpus(instance)
    cards = smi("--query-gpu=index,uuid,memory.used,utilization.gpu,power.draw")
    programs = smi("--query-compute-apps=gpu_uuid,pid,used_memory")
    second = _gpus(instance)
    ours = instance.engine_pids()
    for index, uuid, used, utilization, power in cards:
        share = sum(int(size) for card, pid, size in programs if card == uuid and int(pid) in ours and size.isdigit())
        lab.out.record(
            "memory", gpu=index, smi_used_mib=int(used), smi_engine_mib=share, smi_utilization=utilization,
            smi_watts=power, ours_before=first.get(index), ours_after=second.get(index),
        )  # fmt: skip
    if not cards:
        lab.out.record("memory", note="no nvidia-smi", ours_before=first, ours_after=second)


def _gpus(instance: Instance) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in instance.metrics().items():
        short = name.removeprefix("vllm_supervisor_gpu_")
        match = re.search(r'gpu="(\d+)"', labels)
        if match and short in {"memory_used_bytes", "engine_bytes"}:
            found.setdefault(match[1], {})[short.replace("bytes", "mib")] = value / 2**20
        elif match and short in {"utilization_ratio", "power_watts"}:
            found.setdefault(match[1], {})[short] = value
    return found


def rates(lab: Lab, nvml: Nvml, instance: Instance, seconds: float, streams: int = 16) -> None:
    """Tokens per second while generating: ours each second, the engine's own line, and what the clients got."""
    began, samples, clients = time.monotonic(), [], []
    with load.Busy(instance.port, streams, 256 if lab.device == "cuda" else 16) as busy:
        while time.monotonic() - began < seconds:
            time.sleep(1)
            found = instance.metrics()
            now = time.monotonic()
            ours = {
                re.sub(r'.*window="(\w+)".*', r"\1", labels): value
                for (name, labels), value in found.items()
                if name == "vllm_supervisor_generation_tokens_per_second"
            }
            samples.append((now, ours.get("10s")))
            clients.append((now, busy.got))
            lab.out.line("scrapes.csv", f"{now - lab.out.began:.2f},{ours.get('10s')},{ours.get('60s')},{busy.got}")
        ended = time.monotonic()
        memory(lab, instance)
    said = [(at, float(match[1])) for at, text in instance.lines if at > began and (match := AVERAGE.search(text))]
    pairs = []
    for at, engine in said:
        near = min(samples, key=lambda sample: abs(sample[0] - at), default=None)
        if near:
            pairs.append({"s": round(at - began, 1), "engine": engine, "ours_10s": near[1]})
    middle = [(at, got) for at, got in clients if at - began > seconds / 3]
    client = (middle[-1][1] - middle[0][1]) / (middle[-1][0] - middle[0][0]) if len(middle) > 1 else None
    lab.out.record(
        "rates", streams=streams, seconds=seconds, pairs=pairs, ours_last=samples[-1][1] if samples else None,
        clients_tokens_per_second=client, errors=busy.errors, gpus=nvml.window(began, ended),
    )  # fmt: skip


def reload(lab: Lab, instance: Instance) -> None:
    """An upgrade in place while a request streams; a marker in the code shows that the new code runs."""
    assert instance.process
    lab.need(45, "reload")
    stream = load.Stream(instance.port, 1500 if lab.device == "cuda" else 150)
    stream.start()
    instance.wait("tokens", lambda: len(stream.times) > 20 or stream.error, 60)
    version = lab.source() / "supervisor" / "vllm_supervisor" / "__init__.py"
    was = version.read_text()
    version.write_text(re.sub(r'__version__ = "([^"]+)"', r'__version__ = "\1+upgraded"', was))
    engine = instance.status()["engine"]["pid"]
    notes, before, tokens = len(instance.notes), instance.process.pid, len(stream.times)
    began = time.monotonic()
    done = instance.verb("reload", str(instance.config))
    took = time.monotonic() - began
    mid = len(stream.times)
    status = instance.status()
    stream.join(min(180, max(lab.left() - 10, 1)))
    version.write_text(was)
    later = instance.notes[notes:]
    lab.out.record(
        "reload", exit=done.returncode, said=(done.stdout + done.stderr).strip()[-500:], seconds=round(took, 3),
        version=status.get("version"), reloads=status.get("reloads"), phase=status.get("phase"),
        same_pid=before == instance.process.pid and not instance.exited,
        same_engine=engine == status.get("engine", {}).get("pid"), tokens_before=tokens, tokens_at_end_of_reload=mid,
        tokens_total=len(stream.times), finish=stream.finish, error=stream.error, longest_gap_s=stream.longest_gap(),
        stopping_told=any("STOPPING" in pairs for _, _, pairs in later),
        told=[{"s": round(at - began, 3), **pairs} for at, _, pairs in later if at - began < took + 3][:12],
    )  # fmt: skip


def stop(lab: Lab, nvml: Nvml, instance: Instance, before: dict[str, Any]) -> None:
    """SIGTERM when idle: until the exit, the memory, and what is left."""
    pids = instance.engine_pids()
    segments = instance.segments(list(pids))
    at = instance.sigterm()
    code = instance.wait_exit(90)
    left = sorted({file.name for file in SHM.iterdir()} - before["shm"])
    lab.out.record(
        "stop", exit_code=code, seconds=round(instance.exited - at, 3) if instance.exited else None,
        gpu_free_seconds=nvml.free_since(at, before["used"], set(pids), 20), processes_left=left_over(lab.work),
        shm_mapped=len(segments), shm_left=left, control_socket_left=(instance.home / "run" / "control.sock").exists(),
        last_status=[pairs["STATUS"] for _, _, pairs in instance.notes if "STATUS" in pairs][-3:],
    )  # fmt: skip
    instance.close()
