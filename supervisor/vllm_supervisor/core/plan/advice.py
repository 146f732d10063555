"""The engine's arguments that a plan recommends."""

from __future__ import annotations

from .request import PlanRequest
from .weights import Parallel

_MARGIN = 0.95
"""The reserve is an estimate; a suggestion that used all of it would fail half of the time."""


def suggested_length(context: int, longest: int) -> int:
    """A round context that fits with some room: the model's own, or 2^k or 3 x 2^k tokens."""
    if longest >= context:
        return context
    room = int(longest * _MARGIN)
    if room < 1:
        return longest
    power = 1 << (room.bit_length() - 1)
    return power + power // 2 if power + power // 2 <= room else power


def suggested_args(
    request: PlanRequest, parallel: Parallel, utilization: float, context: int, longest: int
) -> tuple[str, ...]:
    """Arguments for `vllm serve`, every figure of the plan spelled out so that no default can differ."""
    found = ["--tensor-parallel-size", str(parallel.tensor)]
    if parallel.pipeline > 1:
        found += ["--pipeline-parallel-size", str(parallel.pipeline)]
    if parallel.data > 1:
        found += ["--data-parallel-size", str(parallel.data)]
    if parallel.expert:
        found.append("--enable-expert-parallel")
    wish = request.max_model_len
    length = wish if wish and wish <= longest else suggested_length(context, longest)
    found += ["--max-model-len", str(length)]
    if request.kv_cache_memory is not None:
        found += ["--kv-cache-memory-bytes", str(request.kv_cache_memory)]
    else:
        found += ["--gpu-memory-utilization", f"{utilization:g}"]
    if request.kv_cache_dtype != "auto":
        found += ["--kv-cache-dtype", request.kv_cache_dtype]
    return tuple(found)
