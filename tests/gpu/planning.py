"""The plan beside what the engine reports, and starts that must be refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import load
from eyes import Nvml
from instance import Instance
from machine import CHECKOUT, Lab

KEPT = re.compile(
    r"Model loading took|Available KV cache memory|GPU KV cache size|Free memory on device|attention backend|"
    r"Maximum concurrency|init engine|ValueError|Error:|larger than|Using .* (?:MoE|MLA)|CPU KV"
)
UTILIZATION = 0.9
LENGTH = 4096


class Bare:
    """The engine without us, until it has said what it found out."""

    def __init__(
        self, lab: Lab, name: str, model: Path, *, port: int, args: dict[str, Any], env: dict[str, str]
    ) -> None:
        sys.path.insert(0, str(CHECKOUT / "supervisor"))
        from vllm_supervisor.core.endpoint import command_line
        from vllm_supervisor.core.scanner import Scanner
        from vllm_supervisor.core.splitter import Splitter

        self.lab, self.name = lab, name
        self.scanner, self._splitter = Scanner(), Splitter()
        self.figures: dict[str, Any] = {}
        self.kept: list[str] = []
        self.log = lab.directories(name) / "engine.log"
        line = command_line(
            lab.engine, str(model), served_model_name="kimi", host="127.0.0.1", port=port,
            args={**lab.engine_args, **args},
        )  # fmt: skip
        environment = {**lab.environment(name), **lab.engine_environment(), **env, "SPT_NOENV": "1"}
        if not lab.site:
            environment.pop("PYTHONPATH", None)
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            lab.confined(line), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, cwd=self.log.parent,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.log.open("wb") as log:
            for raw in self.process.stdout:
                log.write(raw)
                log.flush()
                text = raw.decode(errors="replace").rstrip("\n")
                self.lab.out.line(
                    "logs.txt", f"{time.monotonic() - self.lab.out.began:8.3f} [{self.name}] {text[:2000]}"
                )
                if KEPT.search(text):
                    self.kept.append(text[-400:])
                for line in self._splitter.feed(raw):
                    for fact in self.scanner.feed(line):
                        if type(fact).__name__ == "Figure":
                            self.figures[fact.name.value] = fact.value

    def until(self, done: Any, timeout: float) -> float:
        """Seconds until `done` is true or the engine ended."""
        limit = time.monotonic() + min(timeout, max(self.lab.left() - 5, 1))
        while not done(self) and self.process.poll() is None and time.monotonic() < limit:
            time.sleep(0.1)
        return round(time.monotonic() - self.began, 2)

    def end(self, nvml: Nvml) -> int | None:
        """Kill all of it and wait for its memory."""
        code = self.process.poll()
        pids = {self.process.pid, *_below(self.process.pid)}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        self._reader.join(5)
        nvml.free_since(time.monotonic(), [1 << 60] * nvml.count, pids, 20)
        return code


def _below(root: int) -> list[int]:
    """Descendants of a process."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                todo += map(int, children)
                found += map(int, children)
    return found


def plan_truth(lab: Lab, nvml: Nvml, models: dict[str, Path], caches: tuple[str, ...] = ("auto", "fp8")) -> None:
    """Every shape, cache and size: what the plan says, then what the engine says."""
    plans = {(name, cache): plan(lab, model, cache) for name, model in models.items() for cache in caches}
    two = max(lab.gpus, 1)
    # Sizes of one GPU side by side, each on a card of its own; then those of two.
    batches = [[(name, cache, 1) for name in models] for cache in caches]
    if two == 1:
        batches = [[item] for batch in batches for item in batch]
    else:
        batches += [[(name, cache, 2)] for cache in caches for name in models]
    for batch in batches:
        try:
            lab.need(75, f"plan-truth {batch}")
        except Exception:  # noqa: BLE001 - the later ones are named, too
            continue
        with ThreadPoolExecutor(len(batch)) as pool:
            list(pool.map(lambda pair: truth(lab, nvml, models, plans, pair), enumerate(batch)))


def plan(lab: Lab, model: Path, cache: str) -> dict[str, Any]:
    """`vllm-supervisor plan --json` on this machine, as the service's user."""
    asked = Instance(lab, "plan", model, port=8900, tp=1)
    machine = ["--gpus", "2", "--gpu-memory", "139.8GiB", "--compute-capability", "9.0"] if not lab.gpus else []
    words = [
        "plan", str(model), *machine, "--engine", lab.engine[0], "--gpu-memory-utilization", str(UTILIZATION),
        "--kv-cache-dtype", cache, "--max-model-len", str(LENGTH), "--enforce-eager",
    ]  # fmt: skip
    done = asked.verb(*words, "--json")
    text = asked.verb(*words)
    lab.out.line("plans.txt", f"##### {' '.join(words)}\n{text.stdout}{text.stderr}")
    try:
        return {entry["tensor_parallel_size"]: entry for entry in json.loads(done.stdout)["plans"]}
    except (ValueError, KeyError):
        lab.out.record("plan-failed", model=str(model), cache=cache, exit=done.returncode, error=done.stderr[-500:])
        return {}


def truth(lab: Lab, nvml: Nvml, models: dict[str, Path], plans: dict[Any, Any], numbered: tuple[int, Any]) -> None:
    """One engine, from its start to the size of its cache; forked first, spawned when that does not work."""
    number, (name, cache, tp) = numbered
    entry = plans[name, cache].get(tp, {})
    for method in ("fork", "spawn"):
        if lab.left() < 40:
            return
        env = {"VLLM_WORKER_MULTIPROC_METHOD": method}
        if tp == 1 and lab.gpus > 1:
            env["CUDA_VISIBLE_DEVICES"] = str(number)
        args = {"tensor-parallel-size": tp, "kv-cache-dtype": cache, "max-model-len": LENGTH}
        if lab.device == "cuda":
            args["gpu-memory-utilization"] = UTILIZATION
        bare = Bare(lab, f"truth-{name}-{cache}-{tp}", models[name], port=8100 + 10 * number, args=args, env=env)
        took = bare.until(lambda run: "kv_cache_tokens" in run.figures and "init_seconds" in run.figures, 200)
        ended = bare.process.poll()
        bare.end(nvml)
        cause = bare.scanner.verdict() if ended is not None else None
        lab.out.record(
            "plan-truth", model=name, cache=cache, tp=tp, method=method, seconds=took, ended=ended,
            engine=bare.figures, said=bare.kept[-14:], plan=entry, total=_total(nvml),
            cause=[cause.reason, cause.evidence[:300]] if cause else None,
        )  # fmt: skip
        if "kv_cache_tokens" in bare.figures or (cause and cause.cause_class.value == "permanent"):
            return


def _total(nvml: Nvml) -> int | None:
    return nvml.rows[-1][1][0]["total"] if nvml.count else None


def refusals(lab: Lab, nvml: Nvml, model: Path) -> None:
    """Three starts that cannot work, at once: what `check` says before, what `explain` says after."""
    lab.need(90, "refusals")
    many = max(2 * lab.gpus, 2)
    cases: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("gpu-held", {"tensor-parallel-size": 1}, {"CUDA_VISIBLE_DEVICES": "0"}),
        (
            "kv-too-small",
            {"tensor-parallel-size": 1, "max-model-len": 1 << 20, "gpu-memory-utilization": 0.2},
            {"CUDA_VISIBLE_DEVICES": str(min(1, max(lab.gpus - 1, 0)))},
        ),
        ("too-many-gpus", {"tensor-parallel-size": many}, {}),
    ]
    if lab.gpus == 1:
        cases = [cases[0], cases[2], cases[1]]
    holder = load.helper(sys.executable, load.HOLD, "100", env=dict(os.environ)) if lab.gpus and not lab.fake else None
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda pair: refusal(lab, nvml, model, pair), enumerate(cases)))
    finally:
        if holder:
            holder.kill()
            holder.wait()


def refusal(
    lab: Lab, nvml: Nvml, model: Path, numbered: tuple[int, tuple[str, dict[str, Any], dict[str, str]]]
) -> None:
    """One start that cannot work: the check before, the engine's own log, and how our start ends."""
    number, (name, args, env) = numbered
    args = {"max-model-len": LENGTH, **args}
    instance = Instance(lab, name, model, port=8200 + 10 * number, tp=1, args=args, env=env)
    began = time.monotonic()
    check = instance.verb("check", "--config", str(instance.config))
    took = round(time.monotonic() - began, 2)
    lab.out.record("check", case=name, exit=check.returncode, seconds=took, said=(check.stdout + check.stderr)[-3000:])
    bare = Bare(lab, f"bare-{name}", model, port=8205 + 10 * number, args=args, env=env)
    bare.until(lambda run: "init_seconds" in run.figures, 120)
    bare.end(nvml)
    done = instance.verb("explain", str(bare.log))
    lab.out.record(
        "explain", case=name, engine_exit=bare.process.returncode, said=done.stdout[-1500:], lines=bare.kept[-4:]
    )
    instance.start()
    code = instance.wait_exit(min(100, max(lab.left() - 5, 1)))
    statuses = [pairs["STATUS"] for _, _, pairs in instance.notes if "STATUS" in pairs]
    ended = round(instance.exited - instance.began, 2) if instance.exited else None
    lab.out.record("refused-start", case=name, exit_code=code, status=statuses[-1:], seconds=ended)
    instance.close()
