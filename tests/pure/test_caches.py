"""Where the engine's caches lie, by its environment."""

from __future__ import annotations

from vllm_supervisor.core.caches import caches


def places(env, device="cuda"):
    return {cache.name: cache.path for cache in caches(env, device)}


def test_without_a_variable_they_lie_below_home_and_the_temporary_directory():
    found = places({"HOME": "/home/a", "USER": "a"})
    assert found["torch-compile"] == "/home/a/.cache/vllm/torch_compile_cache"
    assert found["torch-inductor"] == "/tmp/torchinductor_a"
    assert found["flashinfer"] == "/home/a/.cache/flashinfer"
    assert found["triton"] == "/home/a/.triton/cache"
    assert found["cuda"] == "/home/a/.nv/ComputeCache"
    assert found["hugging-face"] == "/home/a/.cache/huggingface"


def test_each_variable_moves_its_own():
    env = {
        "HOME": "/home/a",
        "XDG_CACHE_HOME": "/x",
        "VLLM_CACHE_ROOT": "/v",
        "TORCHINDUCTOR_CACHE_DIR": "/i",
        "TRITON_CACHE_DIR": "/t",
        "FLASHINFER_WORKSPACE_BASE": "/f",
        "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": "/fa",
        "DG_JIT_CACHE_DIR": "/d",
        "CUDA_CACHE_PATH": "/c",
        "HF_HOME": "/h",
    }
    assert places(env) == {
        "torch-compile": "/v/torch_compile_cache",
        "torch-inductor": "/i",
        "model-infos": "/v/modelinfos",
        "triton": "/t",
        "flashinfer": "/f/.cache/flashinfer",
        "flashinfer-autotune": "/fa",
        "deep-gemm": "/d",
        "cuda": "/c",
        "hugging-face": "/h",
    }


def test_a_processor_does_not_wait_for_caches_of_gpus():
    assert set(places({"XDG_CACHE_HOME": "/x"}, "cpu")) == {
        "torch-compile",
        "torch-inductor",
        "model-infos",
        "hugging-face",
    }


def test_an_engine_that_does_not_compile_has_no_cache_of_that():
    every = {cache.name for cache in caches({"HOME": "/h"})}
    assert every - {cache.name for cache in caches({"HOME": "/h"}, eager=True)} == {"torch-compile"}
