"""The plan: for every tensor-parallel size what lands on a GPU, what is left, and what to start."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import engine, kvcache, refusals
from .advice import suggested_args
from .request import ESTIMATED, GIVEN, MEASURED, Measured, PlanEntry, PlanRequest
from .reserve import reserve
from .shape import Shape
from .sizes import gib
from .weights import Parallel, Tally, weights_per_gpu

SMALL_CAPABILITY_BLOCK = {9: 64, 10: 64}
"""MLA's block size by the major compute capability (FlashMLA and FlashInfer take 64); else 16."""


@dataclass(frozen=True, slots=True)
class _Memory:
    weights: int
    overhead: int
    cache: int
    tokens: int | None
    sources: dict[str, str]


def plan(shape: Shape, counted: Tally, request: PlanRequest) -> tuple[PlanEntry, ...]:
    """One entry for every tensor-parallel size that divides the heads and the GPUs."""
    others = request.pipeline * request.data
    sizes = refusals.tensor_parallel_sizes(shape, request.gpus, others)
    return tuple(
        plan_one(shape, counted, request, Parallel(size, request.pipeline, request.data, request.expert))
        for size in sizes
    )


def plan_one(shape: Shape, counted: Tally, request: PlanRequest, parallel: Parallel) -> PlanEntry:
    """The entry of one way to split the model."""
    dtype, reasons, notes = cache_dtype(shape, request)
    reasons += refusals.structural(shape, parallel)
    utilization = request.utilization or engine.default_utilization(request.version)
    batch, sequences = engine.default_batch(request.memory_bytes)
    batch = request.batched_tokens or batch
    if parallel.pipeline > shape.layers:
        parallel = Parallel(parallel.tensor, shape.layers, parallel.data, parallel.expert)
    cache = kvcache.layout(
        shape, parallel.tensor, parallel.pipeline, 1 if dtype == "fp8" else 2, _block(shape, request)
    )
    estimate = reserve(shape, parallel, batch, request.sequences or sequences, eager=request.eager)
    memory = _memory(
        request,
        utilization,
        weights_per_gpu(counted, shape, parallel),
        estimate.total,
        start=_same_start(request, parallel),
        dtype=dtype,
    )
    reasons += _room(request, parallel, utilization, memory)
    longest = kvcache.longest(cache, memory.cache, shape.context, batch) if not reasons else 0
    if not reasons and longest == 0:
        reasons.append(f"TP={parallel.tensor} leaves {gib(memory.cache)} for the KV cache, not enough for one token")
    wish = request.max_model_len
    if not reasons and wish and wish > longest:
        notes.append(f"--max-model-len {wish} does not fit: {longest} tokens do")
    tokens = memory.tokens if memory.tokens is not None else kvcache.capacity(cache, memory.cache, longest, batch)
    fits = not reasons
    return PlanEntry(
        tensor_parallel_size=parallel.tensor,
        pipeline_parallel_size=request.pipeline,
        data_parallel_size=parallel.data,
        expert_parallel=parallel.expert,
        fits=fits,
        reasons=tuple(reasons),
        notes=tuple(notes),
        memory_bytes_per_gpu=request.memory_bytes,
        gpu_memory_utilization=utilization,
        weights_bytes_per_gpu=memory.weights,
        overhead_bytes_per_gpu=memory.overhead,
        kv_cache_dtype=dtype,
        kv_bytes_per_token=cache.token_bytes,
        kv_cache_bytes_per_gpu=max(memory.cache, 0),
        max_tokens=tokens if fits else 0,
        max_model_len=longest if fits else 0,
        suggested_args=suggested_args(request, parallel, utilization, shape.context, longest) if fits else (),
        sources=memory.sources,
    )


def cache_dtype(shape: Shape, request: PlanRequest) -> tuple[str, list[str], list[str]]:
    """The cache's type (`auto` is 16 bits, or `fp8`), with refusals and notes about it.

    A checkpoint that asks for FP8 is planned with 16 bits unless version and card are known to
    serve it: that is what an overlay falls back to, and it promises half as much.
    """
    works = engine.fp8_cache_works(shape, request.version, request.capability)
    if request.kv_cache_dtype.startswith("fp8"):
        refused = ["no attention backend of this engine takes an FP8 KV cache on these GPUs"] if works is False else []
        return "fp8", refused, []
    if request.kv_cache_dtype != "auto" or not shape.kv_scheme:
        return "auto", [], []
    if works:
        return "fp8", [], []
    why = "these GPUs have no backend for it" if works is False else "engine version or GPU are not known to serve it"
    note = f"the checkpoint asks for an FP8 KV cache; planned with 16 bits because {why}"
    return "auto", [], [note + (": make an overlay" if works is False else " (--kv-cache-dtype fp8 plans with it)")]


def _block(shape: Shape, request: PlanRequest) -> int:
    if request.block:
        return request.block
    if shape.is_mla and request.capability:
        return SMALL_CAPABILITY_BLOCK.get(request.capability[0], kvcache.DEFAULT_BLOCK)
    return kvcache.DEFAULT_BLOCK


def _same_start(request: PlanRequest, parallel: Parallel) -> Measured | None:
    split = (parallel.tensor, parallel.pipeline, parallel.data)
    for start in reversed(request.measured):
        if (start.tensor_parallel_size, start.pipeline_parallel_size, start.data_parallel_size) == split:
            return start
    return None


def _memory(
    request: PlanRequest, utilization: float, weights: int, overhead: int, *, start: Measured | None, dtype: str
) -> _Memory:
    """Weights, reserve and what is left, with the measured figures of a like start where there are any."""
    sources = {"weights": ESTIMATED, "overhead": ESTIMATED, "kv_cache": ESTIMATED}
    if start and start.weights_bytes is not None:
        weights, sources["weights"] = start.weights_bytes, MEASURED
    if start and start.overhead_bytes is not None:
        overhead, sources["overhead"] = start.overhead_bytes, MEASURED
    if request.kv_cache_memory is not None:
        return _Memory(weights, overhead, request.kv_cache_memory, None, sources | {"kv_cache": GIVEN})
    same = start and start.gpu_memory_utilization == utilization and start.kv_cache_dtype in {dtype, None}
    if start and same and start.kv_cache_bytes is not None:
        sources["kv_cache"] = MEASURED
        return _Memory(weights, overhead, start.kv_cache_bytes, start.kv_cache_tokens, sources)
    budget = math.ceil((request.memory_bytes or 0) * utilization)
    return _Memory(weights, overhead, budget - weights - overhead, None, sources)


def _room(request: PlanRequest, parallel: Parallel, utilization: float, memory: _Memory) -> list[str]:
    total = request.memory_bytes
    if total is None:
        return []
    who = f"TP={parallel.tensor}"
    if memory.weights > total:
        return [f"{who} needs {gib(memory.weights)} a GPU for the weights, {gib(total)} are there"]
    if request.kv_cache_memory is not None:
        wanted = memory.weights + memory.overhead + memory.cache
        return [f"{who} needs {gib(wanted)} a GPU with that KV cache, {gib(total)} are there"] if wanted > total else []
    if memory.cache <= 0:
        needed = memory.weights + memory.overhead
        granted = f"--gpu-memory-utilization {utilization:g} of {gib(total)} grants {gib(total * utilization)}"
        return [f"{who} needs {gib(needed)} a GPU before any KV cache, {granted}"]
    return []
