"""The GPUs: there, enough, free, and by whom they are held if not."""

from __future__ import annotations

from dataclasses import replace

from vllm_supervisor.core.held import units_of
from vllm_supervisor.core.neighbours import chosen_gpus, named
from vllm_supervisor.core.plan import engine as engine_facts
from vllm_supervisor.core.plan.sizes import MIB
from vllm_supervisor.core.words import size

from .finding import Finding, refuse, warn
from .observed import EngineView, GpuObservation, GpuSeen, Holder
from .settings import Options
from .weights import held_elsewhere

IDLE_BYTES = 1024 * MIB
"""The driver's own part of a large card is up to 0.65 GB with no process at all."""


def visible(view: EngineView, gpus: GpuObservation) -> tuple[GpuSeen, ...]:
    """The GPUs that the engine sees, in its order (CUDA_VISIBLE_DEVICES; an unknown entry ends the list)."""
    words = chosen_gpus(view.env)
    if words is None:
        return gpus.gpus
    by_index = {gpu.index: gpu for gpu in gpus.gpus}
    return tuple(by_index[index] for index in named(words, [(gpu.index, gpu.uuid) for gpu in gpus.gpus]))


def not_free(view: EngineView, gpus: GpuObservation, holders: dict[int, Holder] | None = None) -> str:
    """Why the engine's GPUs are not known to be free, as one sentence without its full stop; empty when they are.

    What cannot be read is not free: a driver that does not answer and a GPU that it cannot reach may hold anything.
    """
    if gpus.silent:
        return "the NVIDIA driver does not answer, so nobody knows whether the GPUs are free; run nvidia-smi"
    words, seen = chosen_gpus(view.env), visible(view, gpus)
    if gpus.lost and (words is None or len(seen) < len(words)):
        return f"the NVIDIA driver cannot reach {_lost(gpus)}; see journalctl -k | grep Xid"
    for gpu in (_without_weights(view, gpu, holders or {}) for gpu in seen):
        if gpu.used_bytes > IDLE_BYTES:
            still = f"GPU {gpu.index} still holds {size(gpu.used_bytes)}"
            by = _held(gpu, holders or {})
            return f"{still}, held by {by}; stop that process" if by else f"{still}; no process shows; see nvidia-smi"
    return ""


def check_alone(view: EngineView, gpus: GpuObservation | None, holders: dict[int, Holder]) -> list[Finding]:
    """Refuse what `not_free` would find after the engine's end, where processes of others show it before.

    Args:
        view: The engine.
        gpus: Its machine's GPUs without the engine's own memory.
        holders: What is known of the processes that hold the rest.
    """
    if view.device != "cuda" or gpus is None:
        return []
    found = []
    for gpu in (_without_weights(view, gpu, holders) for gpu in visible(view, gpus)):
        # NVML in a container may show pids of the host: whom nobody knows here may be the engine itself.
        known = tuple((pid, held) for pid, held in gpu.processes if pid in holders and holders[pid].name)
        if sum(held for _, held in known) > IDLE_BYTES:
            by = _held(replace(gpu, processes=known), holders)
            seen = f"GPU {gpu.index} would not be free after the stop: it is held by {by}"
            found.append(refuse("gpu-memory", "gpu-busy", seen, "stop that process, or use --no-stop"))
    return found


def check_gpus(
    view: EngineView, options: Options, gpus: GpuObservation | None, holders: dict[int, Holder], version: str | None
) -> list[Finding]:
    """Refuse when GPUs are missing or held; nothing is asked of them for device = "cpu"."""
    if view.device != "cuda":
        return []
    if gpus is not None and gpus.silent:
        # Without its persistence daemon a driver takes seconds for each GPU: slow is not absent.
        return [
            warn(
                "gpus",
                "the NVIDIA driver did not answer in time, so the GPUs are not checked",
                "run nvidia-smi; enable nvidia-persistenced",
            )
        ]
    needed = options.parallel().gpus // (options.number("nnodes") or 1)
    seen = visible(view, gpus) if gpus is not None else ()
    if gpus is not None and gpus.lost and len(seen) < needed:
        return [
            refuse(
                "gpus",
                "gpu-lost",
                f"{len(seen)} of the GPUs that are needed ({needed}) are there; the driver cannot reach {_lost(gpus)}",
                "see journalctl -k | grep Xid; reset the GPU or reboot, and have the card looked at if it comes back",
            )
        ]
    if gpus is None or not gpus.gpus:
        return [
            refuse(
                "gpus",
                "driver-mismatch",
                "no NVIDIA driver answers here" if gpus is None else "the NVIDIA driver shows no GPU",
                'run nvidia-smi; after a driver upgrade reboot; without GPUs set engine.device = "cpu"',
            )
        ]
    if len(seen) < needed:
        hidden = _hidden(view, gpus, len(seen))
        return [
            refuse(
                "gpus",
                "tensor-parallel-invalid",
                f"{needed} GPUs are needed and {len(seen)} are there{hidden}",
                "lower tensor-parallel-size; if a GPU is gone, see nvidia-smi and journalctl -k | grep Xid",
            )
        ]
    used = seen[:needed] if options.text("distributed-executor-backend") != "ray" else seen
    found = _different(used)
    if gpus.lost and chosen_gpus(view.env) is None:
        found.append(
            warn(
                "gpus",
                f"the driver cannot reach {_lost(gpus)}, which the engine does not need but may fail on",
                "see journalctl -k | grep Xid; leave it out with engine.gpus",
            )
        )
    share = options.fraction("gpu-memory-utilization") or engine_facts.default_utilization(
        engine_facts.parse_version(version)
    )
    for gpu in used:
        found += _free(_without_weights(view, gpu, holders), share, holders, held_elsewhere(options))
    return found


def _hidden(view: EngineView, gpus: GpuObservation, seen: int) -> str:
    words = chosen_gpus(view.env) or ()
    if seen < len(words):
        return f"; GPU {words[seen]} of engine.gpus (or CUDA_VISIBLE_DEVICES) is not one of this machine"
    return ", engine.gpus (or CUDA_VISIBLE_DEVICES) hides others" if seen < len(gpus.gpus) else ""


def _lost(gpus: GpuObservation) -> str:
    return ", ".join(f"GPU {index}" for index in gpus.lost)


def weights_pids(view: EngineView, holders: dict[int, Holder]) -> frozenset[int]:
    """The processes among the holders of GPUs that hold the weights of this instance, in their own unit."""
    if view.weights != "held":
        return frozenset()
    return frozenset(pid for pid, holder in holders.items() if holder.unit in units_of(view.name))


def _without_weights(view: EngineView, gpu: GpuSeen, holders: dict[int, Holder]) -> GpuSeen:
    """The GPU without what the unit of the weights holds there: the engine counts it into its own share."""
    expected = weights_pids(view, holders)
    mine = [size for pid, size in gpu.processes if pid in expected]
    if not mine:
        return gpu
    others = tuple((pid, size) for pid, size in gpu.processes if pid not in expected)
    # NVML may list a process without its size, which is 0 here: with nobody else on the GPU, all of it is theirs.
    held = sum(mine) if all(mine) or others else gpu.used_bytes
    return replace(gpu, used_bytes=max(gpu.used_bytes - held, 0), processes=others)


def _free(gpu: GpuSeen, share: float, holders: dict[int, Holder], elsewhere: bool) -> list[Finding]:
    free, wanted = gpu.total_bytes - gpu.used_bytes, int(gpu.total_bytes * share)
    by = _held(gpu, holders)
    if free < wanted:
        seen = f"GPU {gpu.index} has {free // MIB} of {gpu.total_bytes // MIB} MiB free, {wanted // MIB} MiB are wanted"
        if elsewhere:
            # The engine counts what vllm preload holds into its own share, and refuses by itself what is left short.
            seen += f"; it is held by {by}" if by else "; no process shows"
            return [warn("gpu-memory", seen, "right if vllm preload has it, else stop what does")]
        if by:
            return [
                refuse("gpu-memory", "gpu-busy", f"{seen}; it is held by {by}", "stop that process, or wait for it")
            ]
        return [
            refuse(
                "gpu-memory", "gpu-busy", f"{seen}; no process shows", "see nvidia-smi; lower gpu-memory-utilization"
            )
        ]
    if gpu.used_bytes > IDLE_BYTES and by:
        return [warn("gpu-memory", f"GPU {gpu.index} is also used by {by}", "it leaves less for the KV cache")]
    return []


def _held(gpu: GpuSeen, holders: dict[int, Holder]) -> str:
    parts = [f"{holders.get(pid, Holder(pid))}: {size // MIB} MiB" for pid, size in gpu.processes]
    return ", ".join(parts)


def _different(used: tuple[GpuSeen, ...]) -> list[Finding]:
    names = {gpu.name for gpu in used}
    if len(names) < 2:
        return []
    smallest = min(used, key=lambda gpu: gpu.total_bytes)
    return [
        warn(
            "gpus",
            f"the GPUs differ ({', '.join(sorted(names))}); the smallest, GPU {smallest.index}, bounds all",
            "choose like ones with engine.gpus",
        )
    ]
