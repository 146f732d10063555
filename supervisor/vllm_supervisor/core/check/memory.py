"""The plan as a check: refuse what surely does not fit, warn of what is near."""

from __future__ import annotations

from vllm_supervisor.core.plan import advice, planner
from vllm_supervisor.core.plan.engine import parse_version
from vllm_supervisor.core.plan.request import Measured, PlanEntry, PlanRequest
from vllm_supervisor.core.plan.shape import Shape
from vllm_supervisor.core.plan.sizes import gib
from vllm_supervisor.core.plan.weights import Parallel, Tally

from .finding import Finding, refuse, warn
from .gpus import visible
from .observed import EngineView, GpuObservation, least_capability
from .settings import Options

_SURE = 1.10
"""The estimate of the reserve may be off; a refusal needs so much more than what is thought to fit."""


def plan_request(
    options: Options, gpus: GpuObservation, view: EngineView, version: str | None, measured: tuple[Measured, ...]
) -> PlanRequest:
    """What the configured start asks of the plan."""
    cards = visible(view, gpus)
    parallel = options.parallel()
    return PlanRequest(
        gpus=len(cards),
        memory_bytes=min((gpu.total_bytes for gpu in cards), default=None),
        capability=least_capability(cards),
        utilization=options.fraction("gpu-memory-utilization"),
        kv_cache_memory=options.number("kv-cache-memory-bytes"),
        kv_cache_dtype=options.text("kv-cache-dtype", "auto"),
        pipeline=parallel.pipeline,
        data=parallel.data,
        expert=parallel.expert,
        batched_tokens=options.number("max-num-batched-tokens"),
        sequences=options.number("max-num-seqs"),
        block=options.number("block-size"),
        max_model_len=options.number("max-model-len"),
        eager=options.has("enforce-eager"),
        version=parse_version(version),
        measured=measured,
    )


def check_memory(shape: Shape, counted: Tally, options: Options, request: PlanRequest) -> list[Finding]:
    """Weights and context against the cards' memory."""
    if options.has("quantization") and not shape.quantization:
        # Quantised while loading: the headers do not tell what will be on the card.
        return []
    if options.has("cpu-offload-gb") or options.has("speculative-config"):
        return []
    parallel = options.parallel()
    entry = planner.plan_one(shape, counted, request, parallel)
    if not entry.fits:
        return _too_large(entry, request)
    return _context(entry, options, shape, parallel)


def _too_large(entry: PlanEntry, request: PlanRequest) -> list[Finding]:
    total = request.memory_bytes or 0
    remedy = (
        "use more GPUs (tensor-parallel-size) or a smaller quantisation; vllm-supervisor plan MODEL shows what fits"
    )
    seen = entry.reasons[0]
    granted = total if request.kv_cache_memory is not None else total * entry.gpu_memory_utilization
    if entry.weights_bytes_per_gpu > granted:
        return [refuse("memory", "gpu-out-of-memory", seen, remedy)]
    return [warn("memory", seen + " (estimated)", remedy)]


def _context(entry: PlanEntry, options: Options, shape: Shape, parallel: Parallel) -> list[Finding]:
    given = options.text("max-model-len")
    if given in {"auto", "-1"}:
        return []
    wanted = options.number("max-model-len") or shape.context
    # An entry's longest request ends at the model's own context; a longer one that is forced is bounded by the cache.
    capped = entry.max_model_len >= shape.context
    if wanted <= (max(entry.max_model_len, entry.max_tokens) if capped else entry.max_model_len):
        return []
    length = advice.suggested_length(shape.context, entry.max_model_len)
    seen = (
        f"{wanted} tokens of context do not fit: TP={parallel.tensor} leaves {gib(entry.kv_cache_bytes_per_gpu)} a GPU "
        f"for the KV cache, enough for {entry.max_model_len} tokens at {entry.kv_bytes_per_token} bytes each"
    )
    remedy = f"set max-model-len = {length}"
    if entry.gpu_memory_utilization < 0.95 and options.number("kv-cache-memory-bytes") is None:
        remedy += ", or gpu-memory-utilization = 0.95 for more"
    if wanted > entry.max_model_len * _SURE:
        return [refuse("memory", "kv-cache-too-small", seen, remedy)]
    return [warn("memory", seen + " (estimated)", remedy)]
