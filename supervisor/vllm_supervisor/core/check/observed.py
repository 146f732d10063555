"""What was observed of a machine, an engine and a checkpoint, as values.

None means unknown everywhere: not found out, for want of rights, time or tools. Unknown is never
taken for bad.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm_supervisor.core.heldfit import HeldSeen
from vllm_supervisor.core.neighbours import Neighbour
from vllm_supervisor.core.plan.request import Measured
from vllm_supervisor.core.plan.shape import Shape
from vllm_supervisor.core.plan.weights import Tally

ArgValue = str | int | float | bool | list[Any]


@dataclass(frozen=True, slots=True)
class EngineView:
    """The configured engine, as far as the check looks at it.

    Attributes:
        command: The engine's command without its arguments.
        model: Directory of the checkpoint or name of the hub.
        served_model_name: The name that clients ask for.
        host: Address of the engine.
        port: Port of the engine.
        device: `cuda` or `cpu`.
        overlay: `auto`, `off` or a path.
        args: Long options without their dashes.
        env: The engine's environment as far as it is configured.
        metrics_listen: Address and port of our own page, empty when there is none.
        name: The instance's.
        further: (setting, ADDRESS:PORT) of the ports beside that of the engine and of our own page.
        weights: `held` where a second unit holds the weights, `holder` where this is that unit, else empty.
    """

    command: tuple[str, ...]
    model: str
    served_model_name: str = "kimi"
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "cuda"
    overlay: str = "auto"
    args: dict[str, ArgValue] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    metrics_listen: str = ""
    name: str = ""
    further: tuple[tuple[str, str], ...] = ()
    weights: str = ""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU: identity, memory in bytes, compute capability, and (pid, bytes) of its processes.

    A compute capability of (0, 0) is unknown.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    compute_capability: tuple[int, int]
    processes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuObservation:
    """All GPUs of the machine and the driver that answered.

    Attributes:
        lost: Indices of GPUs that the driver counts and cannot reach any more.
        silent: There may be a driver, but it did not answer in time; nothing is known then.
    """

    gpus: tuple[GpuSeen, ...]
    driver_version: str = ""
    lost: tuple[int, ...] = ()
    silent: bool = False


def least_capability(gpus: tuple[GpuSeen, ...]) -> tuple[int, int] | None:
    """The compute capability that all of these have; None when it is not known of each."""
    least = min((gpu.compute_capability for gpu in gpus), default=(0, 0))
    return least if least > (0, 0) else None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a port or a GPU; empty fields are unknown."""

    pid: int
    name: str = ""
    user: str = ""
    unit: str = ""

    def __str__(self) -> str:
        known = [part for part in (self.name, f"user {self.user}" if self.user else "") if part]
        detail = f" ({', '.join(known)})" if known else ""
        return f"pid {self.pid}{detail}" + (f" of {self.unit}" if self.unit else "")


@dataclass(frozen=True, slots=True)
class ObservedEngine:
    """The engine's installation.

    Attributes:
        executable: The command's program as a path; None when it was not found.
        problem: Why it cannot be run, as one sentence; empty when it can.
        version: The release out of its metadata; None when unknown.
        native: The program is machine code, not a script.
        ray: Whether Ray is installed beside it.
        flags: The long options that it knows, without dashes; None when unknown.
    """

    executable: str | None = None
    problem: str = ""
    version: str | None = None
    flags: frozenset[str] | None = None
    native: bool = False
    ray: bool = False


@dataclass(frozen=True, slots=True)
class ObservedModel:
    """The checkpoint.

    Attributes:
        path: Its directory as found.
        problems: (reason, sentence) of all that is wrong with its files.
        strays: Weight files that the index does not name.
        tokenizer: Whether there are tokenizer files.
        shape: Its architecture; None when it could not be read.
        tally: Its weights; None when they could not be read.
        hub: Whether it is a hub name that is not in the local cache.
        unreadable: Files or directories that the service user may not read.
        timed_out: The reading took too long and was given up.
        unplanned: Why no plan can be made of config.json, as one sentence.
    """

    path: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    strays: tuple[str, ...] = ()
    tokenizer: bool = True
    shape: Shape | None = None
    tally: Tally | None = None
    hub: bool = False
    unreadable: tuple[str, ...] = ()
    timed_out: bool = False
    unplanned: str = ""


@dataclass(frozen=True, slots=True)
class ObservedHost:
    """The machine around the engine.

    Attributes:
        port_holder: Who listens on the engine's port; None when it is free.
        metrics_holder: Who listens on our own page's port.
        unbindable: Why nobody can listen on the engine's address, in a few words; empty when one can.
        metrics_unbindable: The same of our own page's.
        port_denied: This process may not bind the engine's port, for want of CAP_NET_BIND_SERVICE.
        port_needs_right: The service user may only with that capability, which its unit may give it.
        limits: Limits by name that the engine can raise its own to: `nofile`, `memlock`; -1 is none.
        shm_bytes: Size of /dev/shm.
        shm_free_bytes: What is free of it.
        caches: For each cache directory the free bytes, or None where it cannot be written.
        gpu_holders: By pid, who holds memory of a GPU.
        pcie: Named facts of the PCIe list, see `pcie`; a missing name is unknown.
        memory_bytes: The machine's memory.
    """

    port_holder: Holder | None = None
    metrics_holder: Holder | None = None
    unbindable: str = ""
    metrics_unbindable: str = ""
    port_denied: bool = False
    port_needs_right: bool = False
    limits: dict[str, int] = field(default_factory=dict)
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    caches: dict[str, int | None] = field(default_factory=dict)
    gpu_holders: dict[int, Holder] = field(default_factory=dict)
    pcie: dict[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything together; a part that was not looked at is None."""

    engine: ObservedEngine | None = None
    model: ObservedModel | None = None
    host: ObservedHost | None = None
    gpus: GpuObservation | None = None
    measured: tuple[Measured, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    held: HeldSeen | None = None
