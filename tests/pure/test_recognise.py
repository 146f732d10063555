import pytest

from vllm_supervisor.core.facts import Figure, PhaseSeen
from vllm_supervisor.core.facts import FigureName as F
from vllm_supervisor.core.lines import peel
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.recognise import recognise
from vllm_supervisor.core.recognise_bars import Bar, bar, is_bar, is_warmup
from vllm_supervisor.core.scanner import Scanner

P = Phase


def seen(message):
    found = recognise(peel(f"(Worker_TP0 pid=3) INFO 05-11 04:02:39 [x.py:1] {message}"))
    return (found.phase, {figure.name: figure.value for figure in found.figures}) if found else None


@pytest.mark.parametrize(
    ("message", "phase", "figures"),
    [
        (" ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0", P.LAUNCHING, {F.ENGINE_VERSION: "0.32.0"}),
        ("  █▄█▀ █     █     █     █  model   /srv/models/kimi", P.LAUNCHING, {F.MODEL: "/srv/models/kimi"}),
        ("vLLM API server version 0.11.0", P.LAUNCHING, {F.ENGINE_VERSION: "0.11.0"}),
        (
            "vLLM server version 0.22.1, serving model /srv/m x",
            P.LAUNCHING,
            {F.ENGINE_VERSION: "0.22.1", F.MODEL: "/srv/m x"},
        ),
        ("non-default args: {'model': 'm'}", P.LAUNCHING, {}),
        ("Resolved architecture: Qwen2ForCausalLM", P.CONFIGURING, {F.ARCHITECTURE: "Qwen2ForCausalLM"}),
        ("Using max model len 131072", P.CONFIGURING, {F.MAX_MODEL_LEN: 131072.0}),
        (
            "Initializing a V1 LLM engine (v0.32.0) with config: model='/srv/m', max_seq_len=1024, tensor_parallel_size=8, quantization=None, kv_cache_dtype=fp8_e4m3, x=1",
            P.CONNECTING,
            {
                F.ENGINE_VERSION: "0.32.0",
                F.TENSOR_PARALLEL_SIZE: 8.0,
                F.MAX_MODEL_LEN: 1024.0,
                F.KV_CACHE_DTYPE: "fp8_e4m3",
                F.MODEL: "/srv/m",
            },
        ),
        ("DP group leader: node_rank=0, world_size=8", P.CONNECTING, {}),
        ("world_size=8 rank=2 local_rank=2 distributed_init_method=file:///x backend=nccl", P.CONNECTING, {}),
        ("vLLM is using nccl==2.28.9", P.CONNECTING, {F.NCCL_VERSION: "2.28.9"}),
        ("Loading model from scratch...", P.LOADING_WEIGHTS, {}),
        ("Starting to load model /srv/m...", P.LOADING_WEIGHTS, {}),
        (
            "Using TRITON_MLA attention backend out of potential backends: ['TRITON_MLA'].",
            P.LOADING_WEIGHTS,
            {F.ATTENTION_BACKEND: "TRITON_MLA"},
        ),
        ("Using AttentionBackendEnum.FLASHMLA backend.", P.LOADING_WEIGHTS, {F.ATTENTION_BACKEND: "FLASHMLA"}),
        ("Using Flash Attention backend on V1 engine.", P.LOADING_WEIGHTS, {F.ATTENTION_BACKEND: "Flash Attention"}),
        (
            "Filesystem type for checkpoints: XFS. Checkpoint size: 548.90 GiB. Available RAM: 188.02 GiB.",
            P.LOADING_WEIGHTS,
            {F.CHECKPOINT_GIB: 548.9},
        ),
        ("Loading weights took 155.47 seconds", P.LOADING_WEIGHTS, {F.WEIGHTS_SECONDS: 155.47}),
        (
            "Model loading took 109.4000 GiB and 364.371527 seconds",
            P.COMPILING,
            {F.WEIGHTS_GIB: 109.4, F.LOAD_SECONDS: 364.371527},
        ),
        (
            "Model loading took 70.31 GiB memory and 165.119783 seconds",
            P.COMPILING,
            {F.WEIGHTS_GIB: 70.31, F.LOAD_SECONDS: 165.119783},
        ),
        ("[backbone] torch.compile took 51.75 s in total", P.COMPILING, {F.COMPILE_SECONDS: 51.75}),
        ("torch.compile takes 36.49 s in total", P.COMPILING, {F.COMPILE_SECONDS: 36.49}),
        ("Available KV cache memory: 11.70 GiB", P.SIZING_KV_CACHE, {F.KV_CACHE_GIB: 11.7}),
        (
            "Initial free memory 90.1 GiB, reserved 12.5 GiB memory for KV Cache",
            P.SIZING_KV_CACHE,
            {F.KV_CACHE_GIB: 12.5},
        ),
        ("GPU KV cache size: 119,600 tokens", P.SIZING_KV_CACHE, {F.KV_CACHE_TOKENS: 119600.0}),
        (
            "CPU KV cache size: 1,048,576 tokens, Maximum concurrency for 1,024 tokens per request: 1024.00x",
            P.SIZING_KV_CACHE,
            {F.KV_CACHE_TOKENS: 1048576.0, F.MAX_CONCURRENCY: 1024.0},
        ),
        ("Maximum concurrency for 40,960 tokens per request: 2.92x", P.SIZING_KV_CACHE, {F.MAX_CONCURRENCY: 2.92}),
        ("Auto-fit max_model_len: reduced from 262144 to 178720", P.SIZING_KV_CACHE, {F.MAX_MODEL_LEN: 178720.0}),
        ("Graph capturing finished in 26 secs, took 2.11 GiB", P.CAPTURING_GRAPHS, {F.GRAPH_GIB: 2.11}),
        (
            "init engine (profile, create kv cache, warmup model) took 164.08 s (compilation: 44.23 s)",
            P.STARTING_SERVER,
            {F.INIT_SECONDS: 164.08},
        ),
        (
            "init engine (profile, create kv cache, warmup model) took 132.64 seconds",
            P.STARTING_SERVER,
            {F.INIT_SECONDS: 132.64},
        ),
        ("Starting vLLM API server 0 on http://127.0.0.1:8000", P.STARTING_SERVER, {}),
    ],
)
def test_a_line_gives_its_phase_and_figures(message, phase, figures):
    assert seen(message) == (phase, figures)


@pytest.mark.parametrize(
    "message",
    [
        "Received request x: prompt: 'Available KV cache memory: 11.70 GiB'",
        "Using FlashInfer for top-p & top-k sampling.",
        "Using ['PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0'",
        "Free memory on device (90.1/94.97 GiB) on startup. Desired GPU memory utilization is (0.9, 85.5 GiB).",
        "Starting point",
        "Model Runner V2 requires Triton; using the V1 model runner instead.",
        "",
    ],
)
def test_other_lines_say_nothing(message):
    assert seen(message) is None


def test_every_figure_has_a_line():
    text = "(W pid=1) INFO 05-11 04:02:39 [x.py:1] Initializing a V1 LLM engine (v1) with config: model='m', quantization=modelopt_fp4, x"
    facts = Scanner().feed(text)
    assert PhaseSeen(P.CONNECTING) in facts
    assert Figure(F.QUANTIZATION, "modelopt_fp4") in facts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Loading safetensors checkpoint shards:  45% Completed | 54/119 [02:00<02:24,  2.2s/it]",
            Bar("Loading safetensors checkpoint shards", 54, 119, capture=False),
        ),
        (
            "Loading safetensors checkpoint shards (eager):   0% Completed | 0/2 [00:00<?, ?it/s]",
            Bar("Loading safetensors checkpoint shards (eager)", 0, 2, capture=False),
        ),
        (
            "Multi-thread loading shards: 100% Completed | 2/2 [00:00<00:00, 9.0it/s]",
            Bar("Multi-thread loading shards", 2, 2, capture=False),
        ),
        (
            "Loading pt checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 9.0it/s]",
            Bar("Loading pt checkpoint shards", 1, 2, capture=False),
        ),
        (
            "Loading safetensors using InstantTensor loader:  50% Completed | 1.5G/3.0G [00:00<00:00, 9.0GB/s]",
            Bar("Loading safetensors using InstantTensor loader", 1.5e9, 3e9, capture=False),
        ),
        (
            "Loading safetensors using Runai Model Streamer:   1% Completed | 900/1.2k [00:00<00:00, 9.0it/s]",
            Bar("Loading safetensors using Runai Model Streamer", 900, 1200, capture=False),
        ),
        ("Prefetching checkpoint files: 12% (14/119)", Bar("Prefetching checkpoint files", 14, 119, capture=False)),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  34%|███▍      | 23/67 [00:01<00:02, 20it/s]",
            Bar("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)", 23, 67, capture=True),
        ),
        (
            "Capturing CUDA graphs (FULL): 100%|██████████| 19/19 [00:01<00:00, 20it/s]",
            Bar("Capturing CUDA graphs (FULL)", 19, 19, capture=True),
        ),
        (
            "Capturing CUDA graph shapes:   0%|          | 0/67 [00:00<?, ?it/s]",
            Bar("Capturing CUDA graph shapes", 0, 67, capture=True),
        ),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/0 [00:00<?, ?it/s]", None),
        ("model-00001-of-000064.safetensors:  46%|████▌     | 4.53G/9.81G [00:41<00:48, 110MB/s]", None),
        ("Loading is 50% done", None),
    ],
)
def test_bars_are_read(text, expected):
    assert bar(text) == expected


def test_other_bars_are_known_as_bars():
    assert is_bar("model-00001-of-000064.safetensors:  46%|████▌     | 4.53G/9.81G [00:41<00:48, 110MB/s]")
    assert is_warmup("DeepGEMM warmup:   1%|          | 1/100 [00:00<00:01]")
    assert not is_bar("usage is at 50% | fine")
