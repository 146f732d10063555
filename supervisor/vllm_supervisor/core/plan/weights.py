"""The weights that one GPU holds, from the tensors' sizes and the way they are split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_supervisor.core.checkpoint import Tensor

from . import rules
from .rules import AFTER, BEFORE, Share
from .shape import Shape


@dataclass(frozen=True, slots=True)
class Parallel:
    """How many GPUs work together, and in which way.

    Attributes:
        tensor: Tensor-parallel size.
        pipeline: Pipeline stages.
        data: Data-parallel replicas.
        expert: Whether whole experts are spread instead of slices of each.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Tally:
    """Bytes by place and share; small whatever the checkpoint's size.

    Attributes:
        parts: Bytes of each (layer, `BEFORE` or `AFTER`; share).
        tensors: Tensors that were counted, the skipped ones included.
        total: Bytes of the whole checkpoint.
    """

    parts: dict[tuple[int, Share], int]
    tensors: int
    total: int


def tally(tensors: Iterable[Tensor], shape: Shape) -> Tally:
    """Add up a checkpoint's tensors.

    The 277,000 tensors of a large mixture of experts have some thousand distinct names when the
    experts' numbers are taken out, so the rules run on those only.
    """
    known: dict[tuple[str, str, bool], tuple[int, Share]] = {}
    parts: dict[tuple[int, Share], int] = {}
    count = total = 0
    for name, dtype, sizes, nbytes in tensors:
        # An expert's number says nothing about its place; without it the names of a layer repeat.
        head, expert, tail = name.partition(".experts.")
        key = (head, tail.lstrip("0123456789") if expert else "", len(sizes) > 1)
        place = known.get(key)
        if place is None:
            place = known[key] = rules.classify(name, len(sizes), shape)
        count += 1
        total += nbytes
        # A float32 checkpoint is served in 16 bits unless the engine is told otherwise.
        halved = dtype == "F32" and key[2] and not shape.quantization
        parts[place] = parts.get(place, 0) + (nbytes // 2 if halved else nbytes)
    return Tally(parts, count, total)


def stages(layers: int, pipeline: int) -> tuple[range, ...]:
    """The layers of each pipeline stage, split as the engine does (distributed/utils.py of 0.32).

    What is left over goes to the stages before the last, from the back.
    """
    sizes = [layers // pipeline] * pipeline
    for extra in range(layers % pipeline):
        sizes[-2 - extra] += 1
    starts = [sum(sizes[:stage]) for stage in range(pipeline)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def weights_per_gpu(counted: Tally, shape: Shape, parallel: Parallel) -> int:
    """Bytes of weights on the fullest GPU."""
    by_stage = [0.0] * parallel.pipeline
    stage_of = {layer: number for number, span in enumerate(stages(shape.layers, parallel.pipeline)) for layer in span}
    for (place, share), size in counted.parts.items():
        stage = 0 if place == BEFORE else parallel.pipeline - 1 if place == AFTER else stage_of[place]
        by_stage[stage] += size * fraction(share, shape, parallel)
        if place == BEFORE and share is Share.SPLIT and shape.tied and parallel.pipeline > 1:
            # The last stage needs the embedding again, as its output layer.
            by_stage[-1] += size * fraction(share, shape, parallel)
    return int(max(by_stage))


def fraction(share: Share, shape: Shape, parallel: Parallel) -> float:
    """The part of a tensor with this share that one rank holds."""
    tensor = parallel.tensor
    match share:
        case Share.SKIP:
            return 0.0
        case Share.WHOLE:
            return 1.0
        case Share.SPLIT:
            return 1 / tensor
        case Share.KV_HEADS:
            # With fewer key heads than ranks each rank holds one, so copies exist.
            return 1 / min(tensor, shape.kv_heads)
        case Share.FUSED_QKV:
            queries = shape.heads / (shape.heads + 2 * shape.kv_heads)
            return queries / tensor + (1 - queries) / min(tensor, shape.kv_heads)
        case Share.EXPERT:
            ranks = tensor * parallel.data
            if parallel.expert and shape.experts:
                return -(-shape.experts // ranks) / shape.experts
            return 1 / ranks
        case Share.VISION:
            split = shape.vision_heads > 0 and shape.vision_heads % tensor == 0
            return 1 / tensor if split else 1.0
