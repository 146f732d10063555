"""The faults: what prepares one, and what strikes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from process.daemon_tools import stranger
from process.harness import SOURCE
from process.matrix.scene import BUDGET_S, Scene
from process.matrix.stands import CUT, seen_as

STANDSTILL_S = 3.0
"""So long the supervisor itself stands still: longer than the stall budget of the phase."""

TRACE = 'Traceback (most recent call last):\n  File "/opt/vllm/x.py", line 1, in write\n    self.write(data)\n'
NO_SPACE = f"{TRACE}OSError: [Errno 28] No space left on device: '/var/cache/vllm/torch_compile_cache/rank_0_0'"
NO_SHM = f"{TRACE}RuntimeError: Insufficient space in /dev/shm for the message queue: 160 MiB required, 64 MiB free. Increase the size of /dev/shm."


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        strike: Makes it happen; what it returns is closed when the cell is over.
        fake: Knobs of the engine that it needs, by phase.
        tables: Settings of the supervisor that it needs, by phase.
        scene: What the surroundings must have.
        early: In the check it strikes before the check begins, which looks at the GPUs first.
    """

    strike: Callable[[Scene], Any]
    fake: Callable[[str], dict[str, Any]] = lambda _: {}
    tables: Callable[[str], dict[str, Any]] = lambda _: {}
    scene: dict[str, bool] = field(default_factory=dict)
    early: bool = False


def _budget(phase: str) -> dict[str, Any]:
    """Short limits for the phase of the cell, so that a standstill is named in seconds."""
    if phase == "ready":
        return {"liveness": {"hang_after_s": 3.0, "canary_every_s": 1.0}}
    if phase == "draining":
        return {"stop": {"drain_s": 2.0, "kill_after_s": 1.0}}
    if phase in {*CUT, "verifying"}:
        return {"stall": {each.replace("-", "_"): BUDGET_S for each in seen_as(phase)}}
    return {}


def _growing(phase: str) -> dict[str, Any]:
    # Before it is stopped the engine makes progress, which ends by and by as that of the rest of a real one does.
    return {"silent_work": "grow"} if phase in CUT[2:] else {}


def _reading(phase: str) -> dict[str, Any]:
    return {"silent_work": "read"} if phase in CUT[2:] else {}


def _who(scene: Scene, who: str) -> list[int]:
    stats = scene.stats
    pids = {
        "api-server": [stats["pid"]],
        "engine-core": [stats["core"]],
        "worker": stats["workers"][1:2],
        "all-workers": stats["workers"],
    }[who]
    assert pids
    assert all(pids), stats
    return [int(pid) for pid in pids]


def _signal(who: str, number: signal.Signals) -> Fault:
    def strike(scene: Scene) -> None:
        for pid in _who(scene, who):
            with contextlib.suppress(ProcessLookupError):  # the end of the first worker ends the others
                os.kill(pid, number)

    if number is signal.SIGSTOP:
        return Fault(strike, _growing, _budget)
    return Fault(strike)


def _out_of_memory(scene: Scene) -> None:
    """The kernel kills the process with the most memory, and writes so where only root reads it."""
    largest = max(scene.stats["workers"], key=lambda pid: psutil.Process(pid).memory_info().rss)
    os.kill(largest, signal.SIGKILL)


def _stand_still(scene: Scene) -> None:
    os.kill(scene.pid, signal.SIGSTOP)
    time.sleep(STANDSTILL_S)  # the fault itself, not a wait for something
    os.kill(scene.pid, signal.SIGCONT)


def _lasting(phase: str) -> dict[str, Any]:
    # The drain lasts longer than another supervisor takes to begin.
    return {"token_delay": 0.15} if phase == "draining" else {}


def _lasting_stop(phase: str) -> dict[str, Any]:
    return {"draining": {"stop": {"drain_s": 12.0}}, "stopping": {"stop": {"kill_after_s": 8.0}}}.get(phase, {})


def _second(scene: Scene) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "STATE_DIRECTORY": str(scene.state),
        "RUNTIME_DIRECTORY": str(scene.runtime),
    }
    command = [sys.executable, "-m", "vllm_supervisor", "run", "--config", str(scene.config)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 75, done.stderr
    assert f"already supervised by pid {scene.pid}" in done.stderr, done.stderr


def _steal(scene: Scene) -> Any:
    if scene.status().get("phase") in {"ready", "draining", "stopping"}:
        try:
            thief = stranger(scene.engine_port)
            thief.__enter__()
        except OSError:
            return None
        raise AssertionError("the port of a living engine could be taken")
    thief = stranger(scene.engine_port)
    thief.__enter__()
    return lambda: thief.__exit__(None, None, None)


def _elsewhere(phase: str) -> dict[str, Any]:
    # From then on the real engine holds the port; where the thief was faster, it is the one who answers.
    return {"listen_elsewhere": 0} if phase in {*CUT[1:], "verifying"} else {}


def _dies_of(text: str) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        scene.control("emit", text=text, stream=2)
        scene.control("exit", code=1)

    return strike


def _block_journal(scene: Scene) -> None:
    scene.block_journal()
    if scene.stats:
        # More than the pipe and the queue before it hold.
        scene.control("fault", fault={"kind": "flood", "lines": 40_000, "length": 600}, timeout=60)


def _nvml_hangs(scene: Scene) -> None:
    assert scene.gpus
    scene.gpus.write(hang=["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCount"])
    for index in range(2):
        scene.gpus.card(index, hang=["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage"])


def _kill_helper(scene: Scene) -> None:
    def helper() -> int:
        for child in psutil.Process(scene.pid).children():
            if any("adapters.nvml" in word for word in child.cmdline()) and "nvml_once" not in " ".join(
                child.cmdline()
            ):
                return child.pid
        return 0

    os.kill(scene.wait(helper, "the GPU helper"), signal.SIGKILL)


def _lose_gpu(scene: Scene) -> None:
    assert scene.gpus
    scene.gpus.card(1, lost=True)


def _output(**fault: Any) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        scene.control("fault", fault=fault, timeout=120)

    return strike


def _jump(scene: Scene) -> None:
    scene.shift.write_text("7200")
    scene.wait(
        lambda: abs(scene.status().get("at", time.time()) - time.time()) > 7000 or not scene.status(),
        "the daemon's clock jumps",
    )
    scene.shift.write_text("-7200")


def _term(scene: Scene) -> None:
    scene.sigterm()


def _kill_supervisor(scene: Scene) -> None:
    scene.kill()


DEAF = {"ignore_sigterm": True, "children_ignore_sigterm": True}
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "segfault": signal.SIGSEGV}

FAULTS: dict[str, Fault] = {
    **{
        f"{who}-{how}": _signal(who, number)
        for who in ("api-server", "engine-core", "worker", "all-workers")
        for how, number in SIGNALS.items()
    },
    "out-of-memory-kill": Fault(_out_of_memory),
    "supervisor-killed": Fault(_kill_supervisor),
    "supervisor-stopped": Fault(
        _stand_still, _reading, lambda phase: _budget(phase) if phase in {*CUT[2:], "ready"} else {}
    ),
    "second-supervisor": Fault(_second, _lasting, _lasting_stop),
    "port-stolen": Fault(_steal, _elsewhere),
    "state-disk-full": Fault(Scene.fill_disk, scene={"small_state": True}),
    "cache-disk-full": Fault(_dies_of(NO_SPACE)),
    "shared-memory-full": Fault(_dies_of(NO_SHM)),
    "journal-blocked": Fault(_block_journal),
    "nvml-hangs": Fault(_nvml_hangs, scene={"gpus": True}, early=True),
    "nvml-helper-killed": Fault(_kill_helper, scene={"gpus": True}),
    "gpu-lost": Fault(_lose_gpu, scene={"gpus": True}, early=True),
    "flood": Fault(_output(kind="flood", lines=1_000_000, length=80)),
    "giant-line": Fault(_output(kind="giant", bytes=100_000_000)),
    "clock-jump": Fault(_jump, scene={"shifted": True}),
    "ignores-sigterm": Fault(_term, lambda _: DEAF, lambda _: {"stop": {"drain_s": 1.0, "kill_after_s": 1.5}}),
    "double-fork": Fault(_term, lambda _: {"double_fork": True}),
    "stop": Fault(_term),
    "restart": Fault(_term),
}


def library_of_clock() -> Path:
    """Built before cells run side by side."""
    from process.matrix.scene import shift_library

    return shift_library()
