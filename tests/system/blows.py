"""The faults of a tour over real engines: when each strikes, what it needs, and what must come of it.

Each start of the unit carries one fatal fault, and before it what is harmless there. The outcomes are those of the
matrix (tests/process/matrix/table.py), with limits that a busy host of two cores keeps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from process.matrix.table import OUTCOMES

if TYPE_CHECKING:
    from system.lane import Lane

EARLY = ("launching", "configuring")
LATE = ("loading-weights", "sizing-kv-cache", "starting-server")
"""Each lasts for less than a second with the small model: see `Lane._where`."""


@dataclass(frozen=True)
class Blow:
    """One fault on one lane.

    Attributes:
        fault: Its name in the matrix.
        phases: Where it strikes: the first sight of one of them; none for what lies in the start itself. `LATE` means one
            of these in which nothing has struck so far.
        letter: What must come of it, as the matrix says.
        strike: Makes it happen; it may give the phase, where it brings that about itself.
        prepare: What the start must find; done before that start begins.
        reasons: Instead of the matrix' own, where a real engine or a real counter knows more.
    """

    fault: str
    phases: tuple[str, ...]
    letter: str
    strike: Callable[[Lane], object]
    prepare: Callable[[Lane], None] | None = None
    reasons: frozenset[str] = frozenset()

    @property
    def code(self) -> int:
        return OUTCOMES[self.letter].code

    @property
    def named(self) -> frozenset[str]:
        return self.reasons or OUTCOMES[self.letter].reasons


def _signal(who: str, name: str) -> Callable[[Lane], None]:
    return lambda lane: lane.hit(who, name)


def _lose_gpu(lane: Lane) -> None:
    lane.gpus({"lost": True})


def _small_shm(lane: Lane) -> None:
    lane.settings()
    lane.drop_in("TemporaryFileSystem=\nTemporaryFileSystem=/dev/shm:mode=1777,size=1M")


def _own_cache_disk(lane: Lane) -> None:
    """The caches on a disk of their own, with as much free as the check asks for."""
    lane.machine.run(f"mkdir -p {lane.cache} && mount -t tmpfs -o size=640M,mode=1777 tmpfs {lane.cache}")
    lane.settings(eager=False)
    lane.drop_in(f"ReadWritePaths={lane.cache}\nEnvironment=VLLM_CACHE_ROOT={lane.cache}")


def _fill_cache(lane: Lane) -> None:
    """Compilers write below VLLM_CACHE_ROOT: the first compiled graph finds no room."""
    lane.machine.run(f"cat /dev/zero > {lane.cache}/filler", check=False)


def _hang_nvml(lane: Lane) -> None:
    lane.gpus({"hang": ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage"]})
    lane.service.wait("a GPU that is silent is told", lambda: "gpu_up" in lane.page() and not lane.gpus_up(), 60)
    lane.gpus({})
    lane.service.wait("the GPUs are seen again", lane.gpus_up, 90)


def _kill_helper(lane: Lane) -> None:
    before = lane.helper()
    lane.machine.run(["kill", "-KILL", before])
    lane.service.wait("another GPU helper", lambda: lane.helper() not in {"", before}, 60)


def _jump(lane: Lane) -> None:
    """Two hours forward, then two hours back."""
    for shift in ("7200", "-7200"):
        lane.machine.put(shift, lane.shift)

        def moved(wanted: int = int(shift)) -> bool:
            shown = lane.strikes.status().get("at")
            return shown is not None and abs(shown - time.time() - wanted) < 600

        lane.service.wait("the daemon's clock jumps", moved, 30)
    lane.machine.put("0", lane.shift)


def _out_of_memory(lane: Lane) -> None:
    """The kernel counts the kill in the unit's cgroup first, then the largest process is gone, with nothing between.

    The file is written in place: a counter of the kernel is never empty.
    """
    lane.hit("largest", "KILL", first=f"printf 'oom_kill 1\\n' 1<> {lane.events}")


def _ignore(lane: Lane) -> str:
    lane.hit("api-server", "STOP")
    lane.systemctl("stop")
    return str(lane.strikes.reach("stopping", timeout=60)["phase"])


CARDS = (
    # What ends before there is an engine, or with its first process.
    Blow("gpu-lost", (), "G", lambda _: None, _lose_gpu),
    Blow("stop", ("preflight", "launching"), "s", lambda lane: lane.systemctl("stop"), lambda lane: lane.gpus({})),
    Blow("shared-memory-full", (), "M", lambda _: None, _small_shm),
    Blow("api-server-killed", EARLY, "D", _signal("api-server", "KILL"), lambda lane: lane.settings()),
    Blow("second-supervisor", ("waiting",), ">", lambda lane: lane.second()),
    Blow(
        "api-server-stopped",
        EARLY,
        "L",
        _signal("api-server", "STOP"),
        lambda lane: lane.settings(stall=5.0, wait=5.0),
    ),
    Blow("nvml-hangs", EARLY, ">", _hang_nvml, lambda lane: lane.settings()),
    Blow("supervisor-killed", ("configuring", "connecting", *LATE, "ready"), "R", _signal("supervisor", "KILL")),
    Blow("clock-jump", EARLY, ">", _jump),
    Blow("restart", ("configuring", "connecting"), "r", lambda lane: lane.systemctl("restart")),
    Blow("api-server-segfault", EARLY, "D", _signal("api-server", "SEGV")),
    Blow("ignores-sigterm", EARLY, "s", _ignore),
    Blow("cache-disk-full", ("compiling",), "F", _fill_cache, _own_cache_disk),
    # A start that becomes ready, with a question that makes its verifying last.
    Blow("nvml-helper-killed", ("verifying",), ">", _kill_helper, lambda lane: lane.settings(smoke="require")),
    Blow("engine-core-stopped", ("ready",), "H", _signal("engine-core", "STOP")),
)
"""In this order, on the lane whose GPUs are a fake NVML's."""

PARTS = (
    Blow("double-fork", EARLY, "s", lambda lane: lane.stop_with_orphan()),
    # What needs an engine core or workers.
    Blow("engine-core-killed", ("connecting",), "D", _signal("engine-core", "KILL")),
    Blow("engine-core-segfault", ("connecting",), "D", _signal("engine-core", "SEGV")),
    Blow("worker-killed", ("connecting",), "D", _signal("worker", "KILL")),
    Blow("all-workers-segfault", ("connecting",), "D", _signal("all-workers", "SEGV")),
    Blow("out-of-memory-kill", LATE, "D", _out_of_memory, reasons=frozenset({"host-out-of-memory"})),
    Blow("all-workers-killed", LATE, "D", _signal("all-workers", "KILL")),
    Blow("worker-segfault", LATE, "D", _signal("worker", "SEGV")),
)
"""On the lane without GPUs, beside the other one."""

READY = (
    "flood", "giant-line", "journal-blocked", "supervisor-stopped", "state-disk-full", "port-stolen",
    "worker-stopped", "all-workers-stopped",
)  # fmt: skip
"""Struck on the unit that serves; the last one in its drain."""


def gpu_file(change: dict[str, object]) -> str:
    """Two cards as the fake NVML wants them; the change is the second one's."""
    return json.dumps({"gpus": [{}, change]})
