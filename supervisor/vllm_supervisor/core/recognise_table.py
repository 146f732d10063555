"""The wording of each line that belongs to a phase: vLLM 0.10 to 0.33, V1 engine, both model runners.

Looked up by the first word of a message, so that the thousands of lines that mean nothing cost one
dictionary access, and a line that merely quotes a pattern further on can never match it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .facts import FigureName
from .phases import Phase

_F = FigureName
Names = tuple[FigureName, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line.

    Attributes:
        regex: Matched at the begin of the message.
        phase: The phase that the line belongs to; None where it tells nothing about it.
        figures: Groups of the regex with these names are figures.
        sizes_cache: The line proves that the KV cache is being sized, which is how a graph capture
            is told from the trial capture of the memory profile.
    """

    regex: re.Pattern[str]
    phase: Phase | None
    figures: Names = ()
    sizes_cache: bool = False


def _p(regex: str, phase: Phase | None, *figures: FigureName, sizes_cache: bool = False) -> Pattern:
    return Pattern(re.compile(regex), phase, figures, sizes_cache)


PATTERNS: Final[dict[str, tuple[Pattern, ...]]] = {
    # launching: the first words of the API server, up to the bound port
    "vLLM": (
        _p(
            r"vLLM (?:API )?server version (?P<engine_version>[\w.+\-]+)(?:, serving model (?P<model>\S.*))?",
            Phase.LAUNCHING,
            _F.ENGINE_VERSION,
            _F.MODEL,
        ),
        _p(r"vLLM is using nccl==(?P<nccl_version>[\d.]+)", Phase.CONNECTING, _F.NCCL_VERSION),
    ),
    "non-default": (_p(r"non-default args: ", Phase.LAUNCHING),),
    # configuring
    "Resolved": (_p(r"Resolved architecture: (?P<architecture>\w+)", Phase.CONFIGURING, _F.ARCHITECTURE),),
    "Chunked": (_p(r"Chunked prefill is enabled with ", Phase.CONFIGURING),),
    "Detected": (_p(r"Detected (?:ModelOpt|fp8|FP8|NVFP4) .*checkpoint", Phase.CONFIGURING),),
    "Asynchronous": (_p(r"Asynchronous scheduling is (?:enabled|disabled)", Phase.CONFIGURING),),
    "Error": (_p(r"Error retrieving (?:file list|safetensors)", Phase.CONFIGURING),),
    # connecting: engine core, workers, NCCL
    "Initializing": (
        _p(
            r"Initializing a V1 LLM engine \(v(?P<engine_version>[^)\s]+)\) with config: ",
            Phase.CONNECTING,
            _F.ENGINE_VERSION,
        ),
        _p(r"Initializing model took [\d.]+ seconds", Phase.LOADING_WEIGHTS),
    ),
    "DP": (_p(r"DP group leader: ", Phase.CONNECTING),),
    "world_size": (_p(r"world_size=\d+ rank=\d+ local_rank=\d+ ", Phase.CONNECTING),),
    "rank": (_p(r"rank \d+ in world size \d+ is assigned as ", Phase.CONNECTING),),
    "Custom": (_p(r"Custom allreduce is disabled because ", Phase.CONNECTING),),
    "generating": (_p(r"generating GPU P2P access cache in ", Phase.CONNECTING),),
    "reading": (_p(r"reading GPU P2P access cache from ", Phase.CONNECTING),),
    # loading-weights
    "Starting": (
        _p(r"Starting to load model (?P<model>\S.*?)\.\.\.", Phase.LOADING_WEIGHTS),
        _p(r"Starting vLLM (?:API )?server(?: \d+)? on ", Phase.STARTING_SERVER),
        _p(r"Starting torch\.compile", Phase.COMPILING),
    ),
    "Filesystem": (
        _p(
            r"Filesystem type for checkpoints: \S+\. Checkpoint size: (?P<checkpoint_gib>[\d.]+) GiB",
            Phase.LOADING_WEIGHTS,
            _F.CHECKPOINT_GIB,
        ),
    ),
    "Auto-prefetch": (_p(r"Auto-prefetch is disabled because ", Phase.LOADING_WEIGHTS),),
    "Prefetching": (_p(r"Prefetching checkpoint files", Phase.LOADING_WEIGHTS),),
    "Loading": (
        _p(r"Loading weights took (?P<weights_seconds>[\d.]+) seconds", Phase.LOADING_WEIGHTS, _F.WEIGHTS_SECONDS),
        _p(r"Loading (?:model from scratch|drafter model)\.\.\.", Phase.LOADING_WEIGHTS),
    ),
    # compiling: torch.compile and the profile run
    "Model": (
        _p(
            r"Model loading took (?P<weights_gib>[\d.]+) GiB(?: memory)? and (?P<load_seconds>[\d.]+) seconds",
            Phase.COMPILING,
            _F.WEIGHTS_GIB,
            _F.LOAD_SECONDS,
        ),
    ),
    "Using": (
        _p(r"Using max model len (?P<max_model_len>\d+)", Phase.CONFIGURING, _F.MAX_MODEL_LEN),
        _p(r"Using V2 Model Runner", Phase.CONNECTING),
        _p(
            r"Using (?:AttentionBackendEnum\.)?(?P<attention_backend>[A-Z][A-Z0-9_]+) attention backend out of "
            r"potential",
            Phase.LOADING_WEIGHTS,
            _F.ATTENTION_BACKEND,
        ),
        _p(
            r"Using (?:AttentionBackendEnum\.)?(?P<attention_backend>[A-Z][A-Z0-9_]{3,}) backend\.",
            Phase.LOADING_WEIGHTS,
            _F.ATTENTION_BACKEND,
        ),
        _p(
            r"Using (?P<attention_backend>Flash Attention|FlashInfer|Triton MLA|Cutlass MLA|FlashMLA|FlashInfer MLA"
            r"|FlashAttention MLA|Sparse MLA|Triton|FlexAttention) backend(?: on V1 engine)?\.",
            Phase.LOADING_WEIGHTS,
            _F.ATTENTION_BACKEND,
        ),
        _p(r"Using cache directory: .* for vLLM's torch\.compile", Phase.COMPILING),
        _p(r"Using \w+ KV cache layout\.", Phase.COMPILING),
        _p(r"Using FlashInfer autotune cache file: ", Phase.CAPTURING_GRAPHS),
    ),
    "Dynamo": (_p(r"Dynamo bytecode transform time: ", Phase.COMPILING),),
    "Compiling": (
        _p(r"Compiling a graph for ", Phase.COMPILING),
        _p(r"Compiling CuTeDSL kernels", Phase.CAPTURING_GRAPHS),
    ),
    "Directly": (_p(r"Directly load ", Phase.COMPILING),),
    "torch.compile": (
        _p(
            r"torch\.compile (?:takes|took) (?P<compile_seconds>[\d.]+) s in total", Phase.COMPILING, _F.COMPILE_SECONDS
        ),
    ),
    "saved": (_p(r"saved AOT compiled function to ", Phase.COMPILING),),
    "Initial": (
        _p(r"Initial profiling/warmup run took ", Phase.COMPILING),
        _p(
            r"Initial free memory [\d.]+ GiB, reserved (?P<kv_cache_gib>[\d.]+) GiB memory for KV Cache",
            Phase.SIZING_KV_CACHE,
            _F.KV_CACHE_GIB,
            sizes_cache=True,
        ),
    ),
    "Profiling": (_p(r"Profiling CUDA graph memory: ", Phase.COMPILING),),
    "Estimated": (_p(r"Estimated CUDA graph memory: ", Phase.COMPILING),),
    "Encoder": (_p(r"Encoder cache will be initialized with a budget of ", Phase.COMPILING),),
    # sizing-kv-cache
    "Available": (
        _p(
            r"Available KV cache memory: (?P<kv_cache_gib>-?[\d.]+) GiB",
            Phase.SIZING_KV_CACHE,
            _F.KV_CACHE_GIB,
            sizes_cache=True,
        ),
        _p(r"Available routes are:", Phase.STARTING_SERVER),
    ),
    "Explicitly": (
        _p(
            r"Explicitly set \((?P<kv_cache_gib>[\d.]+)/[\d.]+\) GiB for KV cache",
            Phase.SIZING_KV_CACHE,
            _F.KV_CACHE_GIB,
            sizes_cache=True,
        ),
    ),
    "Auto-fit": (
        _p(
            r"Auto-fit max_model_len: reduced from \d+ to (?P<max_model_len>\d+)",
            Phase.SIZING_KV_CACHE,
            _F.MAX_MODEL_LEN,
            sizes_cache=True,
        ),
        _p(
            r"Auto-fit max_model_len: full model context length (?P<max_model_len>\d+) fits",
            Phase.SIZING_KV_CACHE,
            _F.MAX_MODEL_LEN,
            sizes_cache=True,
        ),
    ),
    "Maximum": (
        _p(
            r"Maximum concurrency for [\d,]+ tokens per request: (?P<max_concurrency>[\d.]+)x",
            Phase.SIZING_KV_CACHE,
            _F.MAX_CONCURRENCY,
            sizes_cache=True,
        ),
    ),
    # capturing-graphs: warm-up of kernels, autotuning, the capture
    "JIT": (_p(r"JIT kernel warmup (?:starting|finished|\()", Phase.CAPTURING_GRAPHS),),
    "DeepGEMM": (_p(r"DeepGEMM warmup", Phase.CAPTURING_GRAPHS),),
    "Running": (_p(r"Running FlashInfer autotune", Phase.CAPTURING_GRAPHS),),
    "Skipping": (_p(r"Skipping FlashInfer autotune because it is disabled", Phase.CAPTURING_GRAPHS),),
    "Warming": (
        _p(r"Warming up FlashInfer attention", Phase.CAPTURING_GRAPHS),
        _p(r"Warming up model for the compilation", Phase.COMPILING),
        _p(r"Warming up done", Phase.COMPILING),
    ),
    "[Autotuner]": (_p(r"\[Autotuner\]: Autotuning process (?:starts|ends)", Phase.CAPTURING_GRAPHS),),
    "Graph": (
        _p(
            r"Graph capturing finished in \d+ secs?, took (?P<graph_gib>-?[\d.]+) GiB",
            Phase.CAPTURING_GRAPHS,
            _F.GRAPH_GIB,
        ),
    ),
    # starting-server: the engine is done, HTTP comes up
    "init": (
        _p(
            r"init engine \(profile, create kv cache, warmup model\) took (?P<init_seconds>[\d.]+) s",
            Phase.STARTING_SERVER,
            _F.INIT_SECONDS,
        ),
    ),
    "Supported": (_p(r"Supported[ _]tasks: ", Phase.STARTING_SERVER),),
    "Launching": (_p(r"Launching Rust frontend: ", Phase.STARTING_SERVER),),
}
_CACHE_SIZE = _p(
    r"\w+(?: \+ host)? KV cache size: (?P<kv_cache_tokens>[\d,]+) tokens"
    r"(?:, Maximum concurrency for [\d,]+ tokens per request: (?P<max_concurrency>[\d.]+)x)?",
    Phase.SIZING_KV_CACHE,
    _F.KV_CACHE_TOKENS,
    _F.MAX_CONCURRENCY,
    sizes_cache=True,
)
for _device in ("GPU", "CPU", "XPU", "HPU", "TPU"):
    PATTERNS[_device] = (_CACHE_SIZE,)
