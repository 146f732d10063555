"""The machine that the proofs run on: paths, environment, records that survive a kill, NVML read by ourselves."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
CAP = 14 << 20
USER = "nobody"
QUIET_NCCL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off, also where a program gets an environment of its own."""


class OutOfTimeError(Exception):
    """The call's time is used up; the rest is skipped and said so."""


class Out:
    """Files under the output folder, written line by line and never beyond their size."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.began = folder, time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def line(self, name: str, text: str) -> None:
        with self._lock:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = (self.folder / name).open(
                    "a", encoding="utf-8", errors="replace", buffering=1
                )
            size = self._sizes.get(name, 0) + len(text) + 1
            if size < CAP:
                file.write(text + "\n")
            elif self._sizes.get(name, 0) < CAP:
                file.write("… cut\n")
            self._sizes[name] = size

    def record(self, kind: str, **fields: Any) -> None:
        """One result: a line of results.jsonl, and a short one on the terminal."""
        body = {"t": round(time.monotonic() - self.began, 3), "kind": kind, **fields}
        self.line("results.jsonl", json.dumps(body, default=str))
        print(f"[{body['t']:7.1f}] {kind}: {json.dumps(fields, default=str)[:300]}", flush=True)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:7.1f}] {text}", flush=True)
        self.line("steps.txt", f"[{time.monotonic() - self.began:7.1f}] {text}")


@dataclass
class Lab:
    """What every proof needs.

    Attributes:
        python: Interpreter of the daemon.
        engine: The engine's command.
        site: Folder of the engine's packages, first on its PYTHONPATH; empty where it has its own.
        budget: Seconds from the start of the script after which nothing new is begun.
    """

    out: Out
    work: Path
    python: str
    engine: list[str]
    site: str
    device: str
    gpus: int
    seccomp: bool
    budget: float
    fake: dict[str, str] = field(default_factory=dict)
    engine_args: dict[str, Any] = field(default_factory=dict)
    fast: bool = False

    def left(self) -> float:
        return self.out.began + self.budget - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Raise when a step of that length would run out of the call."""
        if self.left() < seconds:
            self.out.record("skipped", what=what, needs=seconds, left=round(self.left(), 1))
            raise OutOfTimeError(what)

    def source(self) -> Path:
        """The daemon's code where the service's user can read it."""
        target = self.work / "src"
        if not target.exists():
            target.mkdir(parents=True)
            shutil.copytree(
                CHECKOUT / "supervisor", target / "supervisor", ignore=shutil.ignore_patterns("__pycache__")
            )
            shutil.copytree(HERE, target / "gpu", ignore=shutil.ignore_patterns("__pycache__"))
            subprocess.run(["chmod", "-R", "a+rX", str(self.work)], check=True)
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(target)], check=False)
        return target

    def confined(self, command: list[str], *, seccomp: bool | None = None) -> list[str]:
        filtered = ["--seccomp"] if (self.seccomp if seccomp is None else seccomp) else []
        return [self.python, str(self.source() / "gpu" / "confine.py"), "--user", USER, *filtered, "--", *command]

    def directories(self, name: str) -> Path:
        home = self.work / name
        for folder in (home, home / "state", home / "run", home / "tmp", self.work / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
            own(folder)
        return home

    def environment(self, name: str) -> dict[str, str]:
        """As the unit gives it to the supervisor."""
        home, cache = self.directories(name), self.work / "cache"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NOTIFY_", "VSUP_", "OUT"))}
        path = os.pathsep.join(filter(None, (str(self.source() / "supervisor"), self.fake.get("nvml", ""), self.site)))
        return {
            **QUIET_NCCL,
            **kept,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_CACHE_HOME": str(cache),
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "HF_HOME": str(cache / "huggingface"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "torchinductor"),
            "FLASHINFER_WORKSPACE_BASE": str(cache),
            "CUDA_CACHE_PATH": str(cache / "cuda"),
            "TMPDIR": str(home / "tmp"),
            "STATE_DIRECTORY": str(home / "state"),
            "RUNTIME_DIRECTORY": str(home / "run"),
            **({"VSUP_FAKE_NVML": self.fake["gpus"]} if self.fake else {}),
        }

    def engine_environment(self) -> dict[str, str]:
        """What [engine.env] sets; the supervisor passes neither PYTHONPATH nor LD_LIBRARY_PATH on."""
        found = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", **QUIET_NCCL}
        if self.site:
            found["PYTHONPATH"] = self.site
        if os.environ.get("LD_LIBRARY_PATH"):
            found["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        if self.device == "cpu":
            found |= {"VLLM_CPU_KVCACHE_SPACE": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
        if self.fake:
            found["FAKE_ENGINE"] = self.fake["script"]
        return found


def own(path: Path) -> None:
    """Give a path to the service's user."""
    if os.geteuid() == 0:
        entry = pwd.getpwnam(USER)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def left_over(work: Path) -> list[str]:
    """Every living process of the service's user that was started for a proof, as text."""
    uid, mark, found = pwd.getpwnam(USER).pw_uid, str(work).encode() + b"/", []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if not entry.isdigit() or Path(f"/proc/{entry}").stat().st_uid != uid:
                continue
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state not in "ZX" and mark in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(f"{entry} {words[:80]}")
    return found


def smi(query: str) -> list[list[str]]:
    """Rows of nvidia-smi; none where it is not there."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    done = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=False
    )
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
