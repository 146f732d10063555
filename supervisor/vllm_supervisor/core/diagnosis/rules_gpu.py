"""Rules: GPU memory, GPUs that are held, CUDA, NCCL, peer access, the fabric."""

from __future__ import annotations

from typing import Final

from .rule import Fields, Kind, Rule, Tier, rule

_BOTH = (Kind.ERROR, Kind.NATIVE)


def _held(groups: Fields) -> Fields:
    held = float(groups["total"]) - float(groups["free"])
    return {"held": f"{held:.0f}", "gpu": (groups.get("dev") or "a GPU").replace("cuda:", "GPU ")}


RULES: Final[tuple[Rule, ...]] = (
    # fabric-manager-down, before driver-mismatch reads the same cudaGetDeviceCount line
    rule(
        "fabric-manager-down",
        r"(?:Unexpected error from cudaGetDeviceCount\(\).{0,200}Error 802: )?(?:CUDA error: |Cuda failure (?:802 "
        r")?'?)?system not yet initialized",
        "the NVSwitch fabric is not up",
        "The NVSwitch fabric is not up: start nvidia-fabricmanager (same version as the driver), wait until "
        "nvidia-smi -q shows the "
        "fabric state Completed, then start.",
        kinds=_BOTH,
    ),
    # gpu-busy
    rule(
        "gpu-busy",
        r"Free memory on device (?:(?P<dev>cuda:\d+) )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less "
        r"than desired "
        r"GPU memory utilization \((?P<util>[\d.]+), (?P<want>[\d.]+) GiB\)",
        "{gpu} has {free} of {total} GiB free, {want} GiB are wanted",
        "Another process (most likely workers left over from a run before) holds about {held} GiB on {gpu}: end it, "
        "wait until the "
        "memory is free, then start.",
        derive=_held,
    ),
    rule(
        "gpu-busy",
        r"Error in memory profiling\. Initial free memory (?P<before>[\d.]+)",
        "GPU memory changed hands while it was measured",
        "Another process freed GPU memory while vLLM measured it (the run before was still ending): wait until it is "
        "stable, then start.",
    ),
    rule(
        "gpu-busy",
        r"CUDA error: (?:all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy or "
        r"unavailable)",
        "the GPU is held exclusively by another process",
        "Another process holds the GPU exclusively: end it, or set the compute mode back to Default.",
    ),
    # Weights that vllm preload holds (the wordings of vLLM 0.32, model_loader/weight_cache and worker/utils.py)
    rule(
        "gpu-busy",
        r"Free memory on device (?P<dev>cuda:\d+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
        r"the engine's budget after excluding external process's weights \((?P<util>[\d.]+), (?P<want>[\d.]+) GiB\)",
        "{gpu} has {free} GiB free beside the weights that vllm preload holds, {want} GiB are wanted",
        "A process other than vllm preload holds memory on {gpu}: end it, wait until the memory is free, then start.",
        derive=_held,
    ),
    rule(
        "load-stalled",
        r"Weight cache daemon did not become ready within (?P<wait>[\d.]+)s",
        "vllm preload did not offer its weights within {wait} s",
        "Start vllm preload, wait until it says READY, and give both the same socket directory; then start.",
    ),
    rule(
        "bad-arguments",
        r"WeightCacheKey mismatch on fields: \[(?P<fields>[\w', ]+)\]",
        "vllm preload holds weights of other options ({fields})",
        "Start vllm preload anew with the engine's model, parallel sizes and data types, and from the same vLLM.",
    ),
    rule(
        "bad-arguments",
        r"platform '?(?P<what>\w{1,40})'? does not support CUDA IPC weight sharing",
        "--load-format ipc_cache does not work on {what}",
        "Remove --load-format ipc_cache: only NVIDIA and AMD GPUs can share weights between processes.",
    ),
    rule(
        "unsupported-quantization",
        r"layer \S{1,200}: (?P<what>\w{1,80}) does not support loading from pre-processed weights",
        "{what} cannot take weights that vllm preload holds",
        "Remove --load-format ipc_cache: this checkpoint's quantisation has to be loaded from disk.",
    ),
    # gpu-out-of-memory
    rule(
        "gpu-out-of-memory",
        r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<n>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total capacity "
        r"of (?P<total>[\d.]+ \w+) "
        r"of which (?P<free>[\d.]+ \w+) is free",
        "GPU {gpu} has {free} of {total} free, {n} more were wanted",
        "GPU {gpu} ({total}) is too small for this plan: use more GPUs (tensor-parallel-size), a smaller checkpoint, "
        "a lower "
        "--gpu-memory-utilization or fewer --max-num-batched-tokens.",
    ),
    rule(
        "gpu-out-of-memory",
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|CUDART error: out of memory|CUDA driver error: out of "
        r"memory"
        r"|Triton Error \[CUDA\]: out of memory",
        "the GPU's memory is full",
        "Use more GPUs (tensor-parallel-size), a smaller checkpoint, a lower --gpu-memory-utilization or fewer "
        "--max-num-batched-tokens.",
        kinds=_BOTH,
    ),
    rule(
        "gpu-out-of-memory",
        r"Failed to load model - not enough GPU memory|[^'`]{0,40}Cuda failure (?:2 )?'out of memory'|CUDA error: "
        r"CUBLAS_STATUS_ALLOC_FAILED"
        r"|[^'`]{0,80}reserve_mm_ipc_gpu_memory",
        "the GPU's memory is full",
        "Use more GPUs (tensor-parallel-size), a smaller checkpoint, a lower --gpu-memory-utilization or fewer "
        "--max-num-batched-tokens.",
        kinds=_BOTH,
        tier=Tier.HINT,
    ),
    # hardware that CUDA or NVML reports
    rule(
        "gpu-fault",
        r"CUDA error: (?P<what>uncorrectable ECC error encountered|hardware stack error|Invalid access of peer GPU "
        r"memory over nvlink or a hardware error)",
        "CUDA reports {what}",
        "Read the kernel log (dmesg, Xid) for the GPU with the memory error: drain it, reset it or reboot, and "
        "replace it if it comes back.",
        kinds=_BOTH,
    ),
    rule(
        "nvlink-fault",
        r"CUDA error: uncorrectable NVLink error",
        "CUDA reports an NVLink error",
        "An NVLink failed: read Xid 74 in the kernel log, reset the GPUs or reboot, and have cables and boards "
        "checked if it comes back.",
        kinds=_BOTH,
    ),
    rule(
        "gpu-lost",
        r"[^'`]{0,80}(?:GPU is lost|GPU has fallen off the bus|Unable to determine the device handle for (?:GPU|gpu))",
        "a GPU is gone",
        "A GPU dropped off the bus: do not restart on it; power-cycle or reboot the host and check power and seating "
        "of that card.",
        kinds=(Kind.ERROR, Kind.NATIVE),
        tier=Tier.HINT,
    ),
    # peer-access-broken
    rule(
        "peer-access-broken",
        r"(?:CUDART error|CUDA error|Cuda failure(?: \d+)?|NCCL WARN)?:? ?'?peer access is not supported between "
        r"these two devices",
        "two GPUs cannot reach each other's memory",
        "The two cards cannot reach each other over PCIe: start with --disable-custom-all-reduce and "
        "NCCL_P2P_DISABLE=1, or turn "
        "IOMMU and ACS off.",
        kinds=_BOTH,
    ),
    rule(
        "peer-access-broken",
        r"CUDART error: (?P<what>.{1,120})|Failed: Cuda error \S{0,200}custom_all_reduce\.cuh:\d+ "
        r"'(?P<other>[^']{1,80})'",
        "sharing GPU memory between workers failed",
        "Sharing GPU memory between the workers failed: start with --disable-custom-all-reduce and "
        "NCCL_P2P_DISABLE=1, or turn IOMMU "
        "and ACS off.",
        kinds=_BOTH,
        when=lambda situation, match: "all-reduce" in situation.frames or "custom_all_reduce.cuh" in match[0],
    ),
    # nccl-error
    rule(
        "nccl-error",
        r"NCCL error:? ?(?:in: .{0,300}?, )?(?:ncclRemoteError|remote process exited|[^'`]{0,60}remote process exited)",
        "NCCL lost a peer",
        "Another rank ended first: look for its lines, retry, and use NCCL_DEBUG=INFO if it comes back.",
        kinds=_BOTH,
        tier=Tier.ECHO,
    ),
    rule(
        "nccl-error",
        r"NCCL error:? ?(?:in: .{0,300}?, )?(?P<what>unhandled (?:system|cuda) error|internal error|invalid usage"
        r"|invalid argument|(?! ?remote| ?ncclRemote)[\w ]{1,60})",
        "NCCL: {what}",
        'NCCL hides the error behind "{what}": retry once with NCCL_DEBUG=INFO, and look at driver, P2P, /dev/shm '
        "and the other ranks if it comes back.",
        kinds=_BOTH,
        tier=Tier.SYMPTOM,
    ),
    rule(
        "nccl-error",
        r"[^'`]{0,200}Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out"
        r"|[^'`]{0,60}(?:ncclUnhandledCudaError|ncclSystemError|ncclInternalError)|Failed to load NCCL library from"
        r"|[^'`]{0,200}wait timeout after \d+ms|Timed out after \d+ seconds waiting for clients|[^'`]{0,100}Gloo "
        r"connectFullMesh failed",
        "a collective operation failed or timed out",
        "A rank did not take part in a collective operation: retry once with NCCL_DEBUG=INFO, and look at P2P and "
        "the slowest rank.",
        kinds=_BOTH,
        tier=Tier.SYMPTOM,
    ),
    # cuda-fault
    rule(
        "cuda-fault",
        r"(?:CUDA error: |CUDA driver error: |Triton Error \[CUDA\]: |CUDA runtime error: )(?P<what>an illegal "
        r"memory access was encountered"
        r"|device-side assert triggered|unspecified launch failure|misaligned address|operation not permitted"
        r"|the launch timed out and was terminated|an illegal instruction was encountered|invalid program counter"
        r"|operation not supported on global/shared address space|CUBLAS_STATUS_\w+|invalid argument|unknown error"
        r"|[\w ]{4,60})",
        "CUDA: {what}",
        "A kernel failed ({what}; a software fault as long as the kernel log has no Xid of the hardware): restart, "
        "and after a third "
        "time within an hour change the version or drop the feature that triggers it.",
        kinds=_BOTH,
        tier=Tier.SYMPTOM,
    ),
    rule(
        "cuda-fault",
        r"(?:cuDNN error|CUDNN_STATUS_\w+|CUBLAS_STATUS_\w+|\[CUDA error\]|GPU coredump|Failed: Cuda error)",
        "a CUDA library failed",
        "A CUDA library failed (often memory pressure or a bad GPU): restart, and look in the kernel log for Xid if "
        "it comes back.",
        kinds=_BOTH,
        tier=Tier.SYMPTOM,
    ),
)
