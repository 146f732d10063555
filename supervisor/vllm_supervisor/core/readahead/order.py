"""What the reading helper is told: which files, in which order, for which engine; or why it is not asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from vllm_supervisor.core.plan.sizes import GIB

from .amounts import parse_amount

NETWORK = frozenset({"nfs", "nfs4", "lustre"})
"""File systems on which vLLM reads ahead by itself (weight_utils.py, since 0.20)."""

IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})

WORKER_BYTES = 3 * GIB
"""What a process of the engine takes of the machine's memory until it has loaded: its libraries, its
CUDA context, its staging buffers."""

_WITHOUT_FILES = {
    "dummy": "--load-format dummy reads no weights",
    "ipc_cache": "--load-format ipc_cache takes the weights from processes that hold them",
    "modelexpress": "--load-format modelexpress takes the weights from another replica",
}
_BY_THEMSELVES = {
    "runai_streamer": "--load-format runai_streamer streams the files by itself",
    "runai_streamer_sharded": "--load-format runai_streamer_sharded streams the files by itself",
    "instanttensor": "--load-format instanttensor reads the disk directly, past the page cache",
    "tensorizer": "--load-format tensorizer streams the files by itself",
}
_PATTERNS: dict[str, tuple[str, ...]] = {
    "hf": (".safetensors", ".bin", ".pt"),
    "safetensors": (".safetensors",),
    "fastsafetensors": (".safetensors",),
    "instanttensor": (".safetensors",),
    "runai_streamer": (".safetensors",),
    "runai_streamer_sharded": (".safetensors",),
    "sharded_state": (".safetensors",),
    "tensorizer": (".tensors",),
    "mistral": (".safetensors",),
    "npcache": (".bin",),
    "pt": (".pt",),
}
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_CONSOLIDATED = "consolidated"


@dataclass(frozen=True, slots=True)
class Order:
    """What the helper is to read, as one line of JSON.

    Attributes:
        model: The directory that the engine loads; an overlay's links are followed.
        load_format: The engine's `--load-format`.
        strategy: Its `--safetensors-load-strategy`, empty when it is not given.
        unordered: It reads several shards at once, in the order of the directory.
        prefetches: Its version reads ahead by itself on network file systems.
        limit_bytes: At most so much lies read ahead; None is as much as memory allows.
        forced: An operator named the size: it is read where `auto` would leave it.
        engine_bytes: What the engine will take of the machine's memory, apart from the weights.
        weights_stay: The engine keeps the weights in the machine's memory (no GPU).
        runtime_dir: The instance's own, beside which other instances have theirs; empty for none.
        threads: Reads at once; 0 is by the number of cores.
        whole_only: Nothing is read unless all of it fits and stays: for a restart that is still to come.
    """

    model: str
    load_format: str = "auto"
    strategy: str = ""
    unordered: bool = False
    prefetches: bool = True
    limit_bytes: int | None = None
    forced: bool = False
    engine_bytes: int = 0
    weights_stay: bool = False
    runtime_dir: str = ""
    threads: int = 0
    whole_only: bool = False


def to_line(order: Order) -> bytes:
    """The order as a line for the helper."""
    return json.dumps(asdict(order)).encode() + b"\n"


def from_line(line: bytes) -> Order:
    """The order of a line.

    Raises:
        ValueError: it is none.
    """
    found = json.loads(line)
    known = {field.name for field in fields(Order)}
    if not isinstance(found, dict) or not found.keys() <= known or "model" not in found:
        raise ValueError("no order")
    return Order(**found)


def order_for(
    model: str,
    options: Mapping[str, Any],
    setting: str,
    *,
    device: str = "cuda",
    version: tuple[int, int, int] | None = None,
    runtime_dir: str = "",
) -> Order | str:
    """The order for an engine, or in one sentence why nothing is read ahead for it.

    Args:
        model: The directory that it will load.
        options: Its options by canonical name, as `engineflags.effective` gives them.
        setting: `load.readahead`: `auto`, `off` or a size.
        device: `cpu` where the weights stay in the machine's memory.
        version: The engine's release, None where it is not known.
        runtime_dir: The instance's runtime directory.
    """
    if setting == "off":
        return "load.readahead is off"
    limit = None if setting == "auto" else parse_amount(setting)
    load_format = _text(options, "load-format").lower() or "auto"
    workers = max(_whole(options, "tensor-parallel-size"), 1) * max(_whole(options, "pipeline-parallel-size"), 1)
    workers *= max(_whole(options, "data-parallel-size-local") or _whole(options, "data-parallel-size"), 1)
    workers = max(workers // max(_whole(options, "nnodes"), 1), 1)
    if load_format in _WITHOUT_FILES:
        return _WITHOUT_FILES[load_format]
    if limit is None:
        if load_format in _BY_THEMSELVES:
            return _BY_THEMSELVES[load_format]
        if load_format == "fastsafetensors" and device == "cuda" and workers == 1:
            return "--load-format fastsafetensors reads the disk directly (GPUDirect Storage), past the page cache"
        if load_format != "auto" and load_format not in _PATTERNS:
            return f"what --load-format {load_format} reads is not known"
    offloaded = _number(options, "cpu-offload-gb") + _number(options, "kv-offloading-size")
    return Order(
        model=model,
        load_format=load_format,
        strategy=_text(options, "safetensors-load-strategy"),
        unordered=multithread(options),
        prefetches=version is None or version >= (0, 20, 0),
        limit_bytes=limit,
        forced=limit is not None,
        engine_bytes=round(workers * (WORKER_BYTES + offloaded * GIB)),
        weights_stay=device == "cpu",
        runtime_dir=runtime_dir,
    )


def chosen(names: Iterable[str], load_format: str) -> list[str]:
    """The weight files among the names of a directory, in their order there (default_loader.py of 0.32)."""
    present = list(names)
    if load_format == "auto":
        mistral = any(name.startswith(_CONSOLIDATED) and name.endswith(".safetensors") for name in present)
        load_format = "mistral" if mistral else "hf"
    for ending in _PATTERNS.get(load_format, (".safetensors",)):
        found = [name for name in present if name.endswith(ending) and not name.endswith(_NOT_WEIGHTS)]
        if load_format == "mistral":
            found = [name for name in found if name.startswith(_CONSOLIDATED)]
        if found:
            return found
    return []


def index_name(load_format: str, names: Sequence[str]) -> str:
    """The index that says which of the safetensors files count."""
    mistral = load_format == "mistral" or (load_format == "auto" and names and names[0].startswith(_CONSOLIDATED))
    return "consolidated.safetensors.index.json" if mistral else "model.safetensors.index.json"


def in_load_order(names: Iterable[str]) -> list[str]:
    """The files as the engine loads them: numbers in names count as numbers (weight_utils.py)."""

    def key(name: str) -> list[tuple[int, int | str]]:
        return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]

    return sorted(names, key=key)


def unwanted(order: Order, file_system: str, *, fits: bool = True) -> str:
    """Why nothing is read from this file system; empty when it is.

    Args:
        order: The order.
        file_system: Its type.
        fits: Whether memory holds the whole checkpoint; unasked, the engine reads ahead only then.
    """
    if file_system in IN_MEMORY:
        return f"the checkpoint lies in memory already ({file_system})"
    does = order.strategy == "prefetch" or (order.strategy == "" and order.prefetches and fits)
    if file_system in NETWORK and does and not order.forced:
        return f"on {file_system} the engine reads ahead by itself; a size in load.readahead does it all the same"
    return ""


def _text(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if isinstance(value, list):
        value = value[-1] if value else None
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def _number(options: Mapping[str, Any], name: str) -> float:
    try:
        return max(float(_text(options, name) or 0), 0.0)
    except ValueError:
        return 0.0


def _whole(options: Mapping[str, Any], name: str) -> int:
    value = _number(options, name)
    return int(value) if value < 1 << 20 else 0


def multithread(options: Mapping[str, Any]) -> bool:
    """Whether the engine reads several shards at once, by its options under their canonical names."""
    try:
        found = json.loads(_text(options, "model-loader-extra-config") or "{}")
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("enable_multithread_load") is True
