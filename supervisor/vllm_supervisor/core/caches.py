"""The caches on disk that make the second start of an engine shorter than its first, by the engine's environment.

Their places are read from the sources of vLLM 0.32 (envs.py), FlashInfer, Triton, PyTorch and the CUDA driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cache:
    """One of them.

    Attributes:
        name: What it is called here.
        path: Its directory.
        saves: What the next start does not do again.
        gpu: Only engines on GPUs fill it.
        compiles: Only engines that compile the model fill it.
    """

    name: str
    path: str
    saves: str
    gpu: bool = False
    compiles: bool = False


def caches(environment: Mapping[str, str], device: str = "cuda", *, eager: bool = False) -> tuple[Cache, ...]:
    """The caches of an engine in this environment.

    Args:
        environment: The engine's: unit, NAME.env and `[engine.env]` together.
        device: `cpu` leaves out what only GPUs use.
        eager: The engine does not compile the model (`--enforce-eager`).
    """
    home = environment.get("HOME") or "/"
    base = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    root = environment.get("VLLM_CACHE_ROOT") or f"{base}/vllm"
    flashinfer = environment.get("FLASHINFER_WORKSPACE_BASE") or home
    temporary = environment.get("TMPDIR") or "/tmp"  # noqa: S108 - where PyTorch looks, not where we write
    user = environment.get("LOGNAME") or environment.get("USER") or "vllm"

    def at(default: str, variable: str = "") -> str:
        return environment.get(variable) or default

    found = (
        Cache("torch-compile", at(f"{root}/torch_compile_cache"), "compiling the model", compiles=True),
        Cache(
            "torch-inductor",
            at(f"{temporary}/torchinductor_{user}", "TORCHINDUCTOR_CACHE_DIR"),
            "compiling PyTorch's kernels",
        ),
        Cache("model-infos", at(f"{root}/modelinfos"), "inspecting the model's class in a process of its own"),
        Cache("triton", at(f"{home}/.triton/cache", "TRITON_CACHE_DIR"), "compiling Triton kernels", gpu=True),
        Cache("flashinfer", at(f"{flashinfer}/.cache/flashinfer"), "building FlashInfer kernels", gpu=True),
        Cache(
            "flashinfer-autotune",
            at(f"{root}/flashinfer_autotune_cache", "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"),
            "choosing FlashInfer kernels",
            gpu=True,
        ),
        Cache("deep-gemm", at(f"{root}/deep_gemm", "DG_JIT_CACHE_DIR"), "building DeepGEMM kernels", gpu=True),
        Cache("cuda", at(f"{home}/.nv/ComputeCache", "CUDA_CACHE_PATH"), "translating PTX", gpu=True),
        Cache("hugging-face", at(f"{base}/huggingface", "HF_HOME"), "fetching what is named by its hub name"),
    )
    unused = [cache for cache in found if (cache.gpu and device == "cpu") or (cache.compiles and eager)]
    return tuple(cache for cache in found if cache not in unused)
