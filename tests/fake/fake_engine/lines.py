"""The lines of a start, with the time between them: a small load, and the nine-minute one of the Kimi machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .arguments import Arguments
from .script import Script
from .style import Line, Style

LOGO = """
       █     █     █▄   ▄█
 ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}
  █▄█▀ █     █     █     █  model   {model}
   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀
"""
ROUTES = ("/health, Methods: GET", "/load, Methods: GET", "/version, Methods: GET", "/metrics, Methods: GET",
          "/tokenize, Methods: POST", "/v1/models, Methods: GET", "/v1/chat/completions, Methods: POST",
          "/v1/completions, Methods: POST")  # fmt: skip
SMALL = {"shards": 4, "load_s": 8.0, "gib": 3.21}
KIMI = {"shards": 119, "load_s": 523.225535, "gib": 70.81}


@dataclass(frozen=True)
class Load:
    """What the lines are about."""

    style: Style
    model: str
    host: str
    served: str
    tp: int
    shards: int
    load_s: float
    gib: float
    max_len: int
    arch: str
    noisy: bool


def made(script: Script, args: Arguments, style: Style, port: int) -> list[Line]:
    """The lines of a load that was made up here, gaps in seconds of the machine that it imitates."""
    kimi = script.load == "kimi"
    base = KIMI if kimi else {**SMALL, "shards": script.shards}
    scheme = "https" if args.has("ssl-keyfile") else "http"
    host = f"{scheme}://{args.text('host', '0.0.0.0')}:{port}"
    load = Load(
        style=style,
        model=args.model,
        host="unix:" + args.text("uds") if args.has("uds") else host,
        served=args.text("served-model-name", args.model),
        tp=style.workers,
        shards=int(base["shards"]),
        load_s=base["load_s"],
        gib=base["gib"],
        max_len=args.number("max-model-len", script.max_model_len),
        arch=architecture(args.model),
        noisy=kimi,
    )
    parts = (launching, configuring, connecting, loading, compiling, sizing, capturing, starting)
    return [line for part in parts for line in part(load)]


def architecture(model: str) -> str:
    try:
        with open(model + "/config.json", "rb") as file:  # noqa: PTH123
            return str(json.load(file)["architectures"][0])
    except (OSError, ValueError, LookupError):
        return "KimiK25ForConditionalGeneration"


def launching(load: Load) -> Iterator[Line]:
    version = load.style.version
    phase = "launching"
    if load.style.minor < 16:
        yield Line(phase, "api", f"vLLM API server version {version}", "api_server.py:1805", gap=16)
    else:
        logo = LOGO.format(version=version, model=load.model).rstrip("\n") + "\n"
        yield Line(phase, "api", logo, "api_utils.py:347", gap=16)
    given = {
        "model_tag": load.model,
        "model": load.model,
        "max_model_len": load.max_len,
        "served_model_name": [load.served],
    }
    yield Line(phase, "api", f"non-default args: {given}", "api_utils.py:286")


def configuring(load: Load) -> Iterator[Line]:
    phase = "configuring"
    yield Line(phase, "api", f"Resolved architecture: {load.arch}", "model.py:733", gap=8)
    yield Line(phase, "api", f"Using max model len {load.max_len}", "model.py:2152")
    yield Line(phase, "api", "Chunked prefill is enabled with max_num_batched_tokens=8192.", "scheduler.py:308")


def connecting(load: Load) -> Iterator[Line]:
    phase = "connecting"
    config = (
        f"model='{load.model}', dtype=torch.bfloat16, max_seq_len={load.max_len}, load_format=auto, "
        f"tensor_parallel_size={load.tp}, pipeline_parallel_size=1, quantization={'modelopt_fp4' if load.noisy else None}, "
        "enforce_eager=False, kv_cache_dtype=auto, device_config=cuda"
    )
    yield Line(
        phase,
        "core",
        f"Initializing a V1 LLM engine (v{load.style.version}) with config: {config}",
        "core.py:133",
        gap=16,
    )
    if load.style.minor >= 18:
        leader = f"world_size={load.tp}, local_world_size={load.tp}"
        yield Line(
            phase,
            "core",
            f"DP group leader: node_rank=0, node_rank_within_dp=0, master_addr=127.0.0.1, mq_connect_ip=192.0.2.10 (local), {leader}",
            "multiproc_executor.py:153",
        )
    for rank in range(load.tp):
        world = f"world_size={load.tp} rank={rank} local_rank={rank} distributed_init_method=file:///tmp/vllm_dist_b08f5ac0 backend=nccl"
        yield Line(phase, f"w{rank}", world, "parallel_state.py:1906", gap=0 if rank else 17)
    if load.tp > 1:
        yield Line(phase, "w0", "vLLM is using nccl==2.28.9", "pynccl.py:148", gap=2)
    if load.noisy:
        for rank in range(load.tp):
            why = "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly."
            yield Line(phase, f"w{rank}", why, "custom_all_reduce.py:192", "WARNING", gap=0.1)
    yield Line(
        phase,
        "w0",
        f"rank 0 in world size {load.tp} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank N/A",
        "parallel_state.py:2350",
    )


def loading(load: Load) -> Iterator[Line]:
    phase = "loading-weights"
    old = load.style.minor <= 28
    first = f"Starting to load model {load.model}..." if old else "Loading model from scratch..."
    yield Line(phase, "w0", first, "gpu_model_runner.py:5040" if old else "model_runner.py:392", gap=1)
    backends = "['TRITON_MLA']" if load.noisy else "['FLASH_ATTN', 'TRITON_ATTN']"
    yield Line(
        phase,
        "w0",
        f"Using {backends[2:].split(chr(39), maxsplit=1)[0]} attention backend out of potential backends: {backends}",
        "cuda.py:507",
    )
    if load.style.minor >= 20:
        size = load.gib * load.tp
        yield Line(
            phase,
            "w0",
            f"Filesystem type for checkpoints: EXT4. Checkpoint size: {size:.2f} GiB. Available RAM: 1004.11 GiB.",
            "weight_utils.py:1108",
        )
    total = load.shards
    for done in range(total + 1):
        spent = load.load_s * done / max(total, 1)
        rest = load.load_s - spent
        times = "00:00<?, ?it/s" if not done else f"{_clock(spent)}<{_clock(rest)},  {load.load_s / total:.2f}s/it"
        bar = f"\rLoading safetensors checkpoint shards: {100 * done // max(total, 1):3d}% Completed | {done}/{total} [{times}]\n"
        yield Line(phase, "w0", bar, raw=True, stream=2, gap=load.load_s / total if done else 0.2, shard=done)
    yield Line(phase, "w0", "\n", raw=True, stream=2)
    yield Line(phase, "w0", f"Loading weights took {load.load_s - 1.1:.2f} seconds", "default_loader.py:501", gap=1)
    exact = f"{load.gib:.4f}" if load.style.minor <= 13 else f"{load.gib:.2f}"
    memory = " memory" if load.style.minor >= 12 else ""
    for rank in range(load.tp if not old else 1):
        yield Line(
            phase,
            f"w{rank}",
            f"Model loading took {exact} GiB{memory} and {load.load_s:.6f} seconds",
            "gpu_model_runner.py:5149",
        )


def compiling(load: Load) -> Iterator[Line]:
    phase = "compiling"
    yield Line(
        phase,
        "w0",
        "Using cache directory: /var/cache/vllm/torch_compile_cache/d8488ec878/rank_0_0/backbone for vLLM's torch.compile",
        "backends.py:890",
        gap=3,
    )
    yield Line(phase, "w0", "Dynamo bytecode transform time: 6.31 s", "backends.py:915", gap=6)
    yield Line(phase, "w0", "Compiling a graph for compile range (1, 8192) takes 14.20 s", "backends.py:391", gap=14)
    verb = "takes" if load.style.minor <= 16 else "took"
    yield Line(phase, "w0", f"torch.compile {verb} 20.51 s in total", "monitor.py:48")


def sizing(load: Load) -> Iterator[Line]:
    phase = "sizing-kv-cache"
    yield Line(phase, "w0", "Available KV cache memory: 16.54 GiB", "gpu_worker.py:759", gap=4)
    size = "GPU KV cache size: 252,736 tokens"
    limit = f"Maximum concurrency for {load.max_len:,} tokens per request: {252736 / load.max_len:.2f}x"
    if load.style.minor >= 28:
        yield Line(phase, "core", f"{size}, {limit}", "kv_cache_utils.py:2327")
    else:
        yield Line(phase, "core", size, "kv_cache_utils.py:2146")
        yield Line(phase, "core", limit, "kv_cache_utils.py:2147")


def capturing(load: Load) -> Iterator[Line]:
    phase = "capturing-graphs"
    if load.noisy:
        yield Line(phase, "w0", "Running FlashInfer autotune with 8192 tokens", "kernel_warmup.py:291", gap=1)
        for tactic in range(40):
            text = f"[Autotuner]: Skipping tactic <flashinfer.fused_moe.core.MoERunner object at 0x7f2c54> {tactic}, due to failure while profiling: [TensorRT-LLM][ERROR] Assertion failed: Failed to initialize cutlass TMA WS grouped gemm. Error: Error Internal (cutlass_kernel_file_gemm_grouped_sm120.cu:60)"
            yield Line(
                phase,
                f"w{tactic % load.tp}",
                f"2026-11-30 20:44:31,029 - WARNING - autotuner.py:485 - flashinfer.jit: {text}",
                stream=2,
                gap=0.2,
            )
    steps = 7
    bar = "Capturing CUDA graphs (PIECEWISE)"
    text = "".join(
        f"\r{bar}: {100 * done // steps:3d}%|{'█' * done}{' ' * (steps - done)}| {done}/{steps} [00:0{done}<00:0{steps - done},  1.00it/s]"
        for done in range(steps + 1)
    )
    for done, part in enumerate(re.findall(r"\r[^\r]+", text)):
        yield Line(phase, "w0", part + ("\n" if done == steps else ""), raw=True, stream=2, gap=1)
    for rank in range(load.tp if load.style.minor > 28 else 1):
        yield Line(phase, f"w{rank}", "Graph capturing finished in 8 secs, took 0.83 GiB", "model_runner.py:1127")
    unit = "seconds" if load.style.minor <= 18 else "s (compilation: 20.51 s)"
    yield Line(phase, "core", f"init engine (profile, create kv cache, warmup model) took 44.18 {unit}", "core.py:402")


def starting(load: Load) -> Iterator[Line]:
    phase = "starting-server"
    yield Line(phase, "api", "Supported tasks: ['generate']", "entry.py:136", gap=1)
    server = "API server 0" if load.style.minor <= 16 else "server"
    yield Line(phase, "api", f"Starting vLLM {server} on {load.host}", "entry.py:140")
    yield Line(phase, "api", "Available routes are:", "launcher.py:186")
    for route in ROUTES:
        yield Line(phase, "api", f"Route: {route}", "launcher.py:195")


def paced(lines: list[Line], seconds: float) -> list[Line]:
    """The same lines with gaps that add up to `seconds`."""
    total = sum(line.gap for line in lines) or 1.0
    return [replace(line, gap=line.gap * seconds / total) for line in lines]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
