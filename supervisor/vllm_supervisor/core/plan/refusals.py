"""Why a split cannot work at all, whatever the memory: what the engine refuses by arithmetic."""

from __future__ import annotations

from .shape import Shape
from .weights import Parallel

_NVFP4_GROUP = 16


def tensor_parallel_sizes(shape: Shape, gpus: int | None, others: int) -> tuple[int, ...]:
    """The tensor-parallel sizes that divide the heads and the GPUs, ascending.

    Args:
        shape: The model's architecture.
        gpus: GPUs of the machine; None plans up to 8.
        others: Pipeline stages times replicas, which need GPUs too.
    """
    most = (8 if gpus is None else gpus) // others
    return tuple(
        size for size in range(1, most + 1) if shape.heads % size == 0 and (gpus is None or gpus % (size * others) == 0)
    )


def structural(shape: Shape, parallel: Parallel) -> list[str]:
    """Sentences for every rule of the engine that this split breaks."""
    tensor = parallel.tensor
    found = []
    if shape.heads % tensor:
        return [f"{shape.heads} attention heads cannot be divided by TP={tensor}"]
    if not shape.is_mla and shape.kv_heads % tensor and tensor % shape.kv_heads:
        found.append(f"{shape.kv_heads} key/value heads can be neither divided by TP={tensor} nor repeated evenly")
    if parallel.pipeline > shape.layers:
        found.append(f"{parallel.pipeline} pipeline stages are more than the model's {shape.layers} layers")
    if parallel.expert and not shape.experts:
        found.append("expert parallelism needs a model with routed experts, and this one has none")
    group = shape.block_n or (_NVFP4_GROUP if "NVFP4" in shape.quantization.upper() else 0)
    if group:
        found.extend(_group_splits(shape, parallel, group))
    return found


def _group_splits(shape: Shape, parallel: Parallel, group: int) -> list[str]:
    """Slices that would cut through a block of scales (`not divisible by weight quantization block_n`)."""
    found = []
    dense = shape.intermediate if shape.experts == 0 else 0
    routed = shape.moe_intermediate if shape.experts and not parallel.expert else 0
    for what, width, ranks in (
        ("the MLP", dense, parallel.tensor),
        ("an expert", routed, parallel.tensor * parallel.data),
    ):
        if width and width % (ranks * group):
            remedy = "; --enable-expert-parallel keeps experts whole" if what == "an expert" else ""
            found.append(
                f"the width {width} of {what} split over {ranks} GPUs is no multiple of the quantisation's "
                f"block of {group}{remedy}"
            )
    return found
