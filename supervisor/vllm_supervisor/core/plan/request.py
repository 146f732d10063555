"""What is asked of a plan and what it answers, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from .engine import Version


@dataclass(frozen=True, slots=True)
class Measured:
    """What a real start of this model showed, per GPU; it replaces the estimates of a like plan.

    Attributes:
        tensor_parallel_size: The start's tensor-parallel size.
        weights_bytes: What the engine reported as taken by the weights.
        overhead_bytes: Requested memory less weights less KV cache.
        kv_cache_bytes: What was left for the KV cache.
        kv_cache_tokens: The tokens that the engine reported for it.
        gpu_memory_utilization: The utilisation that these figures belong to.
        kv_cache_dtype: `fp8`, or `auto` for 16 bits; as in `PlanEntry`.
        pipeline_parallel_size: The start's pipeline stages.
        data_parallel_size: The start's replicas.
        engine_version: Which engine it was.
    """

    tensor_parallel_size: int
    weights_bytes: int | None = None
    overhead_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    engine_version: str | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The machine and the settings to plan for.

    Attributes:
        gpus: GPUs of the machine; None when unknown, then sizes up to 8 are planned.
        memory_bytes: Memory of the smallest GPU as NVML totals it; None when unknown.
        capability: The GPUs' compute capability; None when unknown.
        utilization: `--gpu-memory-utilization`; None takes the engine version's default.
        kv_cache_memory: Bytes of KV cache a GPU, instead of the estimate.
        kv_cache_dtype: `auto`, `fp8` and its kin, or a 16-bit type.
        pipeline: Pipeline stages.
        data: Data-parallel replicas.
        expert: Expert parallelism.
        batched_tokens: `--max-num-batched-tokens`; None takes the engine's default for the card.
        sequences: `--max-num-seqs`; None takes the engine's default for the card.
        block: `--block-size`; None takes the backend's.
        max_model_len: A wish that the answer comments on.
        eager: `--enforce-eager`.
        version: The engine's release; None when unknown.
        measured: Earlier starts, the newest last.
    """

    gpus: int | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    utilization: float | None = None
    kv_cache_memory: int | None = None
    kv_cache_dtype: str = "auto"
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    batched_tokens: int | None = None
    sequences: int | None = None
    block: int | None = None
    max_model_len: int | None = None
    eager: bool = False
    version: Version | None = None
    measured: tuple[Measured, ...] = ()


ESTIMATED, MEASURED, GIVEN = "estimated", "measured", "given"


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One tensor-parallel size.

    Attributes:
        tensor_parallel_size: GPUs that share each layer.
        pipeline_parallel_size: Stages.
        data_parallel_size: Replicas.
        expert_parallel: Whether whole experts are spread.
        fits: Weights plus a KV cache for some context have room.
        reasons: Why it does not fit; empty when it does.
        notes: What else an operator should know.
        memory_bytes_per_gpu: The card's memory, None when unknown.
        gpu_memory_utilization: The part of it that the engine may take.
        weights_bytes_per_gpu: Weights on the fullest GPU.
        overhead_bytes_per_gpu: Activations, graphs, communication and runtime.
        kv_cache_dtype: `auto` for 16 bits or `fp8`.
        kv_bytes_per_token: Bytes of one token on one GPU, over its layers.
        kv_cache_bytes_per_gpu: What is left for the cache.
        max_tokens: Tokens of the whole cache, as the engine will report them.
        max_model_len: The longest request that fits, at most the model's context.
        suggested_args: Arguments for the engine.
        sources: `estimated`, `measured` or `given` for weights, overhead and kv_cache.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    expert_parallel: bool
    fits: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    memory_bytes_per_gpu: int | None
    gpu_memory_utilization: float
    weights_bytes_per_gpu: int
    overhead_bytes_per_gpu: int
    kv_cache_dtype: str
    kv_bytes_per_token: int
    kv_cache_bytes_per_gpu: int
    max_tokens: int
    max_model_len: int
    suggested_args: tuple[str, ...]
    sources: dict[str, str] = field(default_factory=dict)
