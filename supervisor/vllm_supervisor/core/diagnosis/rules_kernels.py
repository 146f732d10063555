"""Rules: kernels that a GPU lacks, the driver, caches and disks, downloads."""

from __future__ import annotations

import re
from typing import Final

from .rule import Fields, Kind, Rule, Situation, Tier, rule


def _cuda_version(groups: Fields) -> Fields:
    number = int(groups["found"]) if groups.get("found") else 0
    return {"cuda": f"{number // 1000}.{number % 1000 // 10}"} if number else {}


def _compiling(situation: Situation, _: re.Match[str]) -> bool:
    return "compile" in situation.frames or situation.phase in {"compiling", "sizing-kv-cache", "capturing-graphs"}


def _shm(situation: Situation, match: re.Match[str]) -> bool:
    return "shm" in situation.frames or "/dev/shm" in match.string  # noqa: S108 -- read, not used


def _not_shm(situation: Situation, match: re.Match[str]) -> bool:
    return not _shm(situation, match)


_SHM = "Enlarge /dev/shm (remount it bigger; --shm-size or --ipc=host in a container) and remove stale segments there."

RULES: Final[tuple[Rule, ...]] = (
    # unsupported-kernel
    rule(
        "unsupported-kernel",
        r"No valid attention backend found for (?P<dev>\w+) with AttentionSelectorConfig\((?P<cfg>.{0,400}?)\)(?:\. "
        r"Reasons: (?P<why>.{0,60}))?",
        "no attention backend can run this model here",
        "No attention backend of this build runs this model on this GPU: the line gives each one's reason; try "
        "--kv-cache-dtype auto, "
        "a release with a backend for this compute capability, or another model.",
    ),
    rule(
        "unsupported-kernel",
        r"Selected backend (?P<what>\S+) is not valid for this configuration",
        "attention backend {what} is not valid here",
        "Drop --attention-backend, or choose another one than {what}.",
    ),
    rule(
        "unsupported-kernel",
        r"FP8 KV cache is not supported by the (?P<what>.{1,60}?) backend on (?P<gpu>.{1,80}?) \(compute capability "
        r".{0,300}?"
        r"Re-run with --kv-cache-dtype (?P<dtype>\w+)",
        "{what} has no FP8 KV cache on {gpu}",
        "Start with --kv-cache-dtype {dtype}; if the checkpoint asks for FP8 itself, serve it through an overlay "
        "without that key.",
    ),
    rule(
        "unsupported-kernel",
        r"FP8 KV cache is not supported|(?P<what>\w{1,30}) V1 with FP8 KV cache not yet supported|[^'`]{0,80}does not "
        r"support fp8 kv[- ]cache",
        "this attention backend has no FP8 KV cache",
        "Start with --kv-cache-dtype auto; if the checkpoint asks for FP8 itself, serve it through an overlay "
        "without that key.",
    ),
    rule(
        "unsupported-kernel",
        r"CUDA error: no kernel image is available for execution on the device"
        r"|Bfloat16 is only supported on GPUs with compute capability|[^'`]{0,200}(?:Unsupported gpu architecture|is "
        r"not "
        r"defined for option 'gpu-name')"
        r"|[^'`]{0,120}(?:requires|only supported on|not supported on).{0,60}compute capability|out of resource: "
        r"shared "
        r"memory"
        r"|No compiled .{1,80} for (?:a )?compute capability|Failed to find a kernel that can implement the|Failed "
        r"to initialize cutlass TMA"
        r"|No (?:valid|suitable|supported|\w{2,12}) .{0,40}MoE backend|[^'`]{0,80}Error Internal.{0,40}cutlass",
        "a kernel that the model needs does not exist for this GPU",
        "Take a vLLM build with kernels for this GPU's compute capability, or turn the feature off that needs them.",
    ),
    # driver-mismatch
    rule(
        "driver-mismatch",
        r"The NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)",
        "the driver speaks CUDA {cuda}, torch was built for a newer one",
        "The driver speaks CUDA {cuda} but torch was built for a newer CUDA: update the NVIDIA driver, or install a "
        "wheel for CUDA {cuda}.",
        derive=_cuda_version,
    ),
    rule(
        "driver-mismatch",
        r"(?:CUDA error: |CUDA driver error: |[^'`]{0,120}Error 803: )?(?:CUDA driver version is insufficient for CUDA "
        r"runtime version"
        r"|the provided PTX was compiled with an unsupported toolchain|system has unsupported display driver / cuda "
        r"driver combination"
        r"|forward compatibility was attempted on non supported HW)|[^'`]{0,80}Driver/library version mismatch",
        "driver and CUDA libraries do not fit together",
        "Update the NVIDIA driver (and reboot after a driver upgrade), or install a vLLM wheel for the CUDA that the "
        "driver speaks.",
        kinds=(Kind.ERROR, Kind.NATIVE),
    ),
    rule(
        "driver-mismatch",
        r"Failed to infer device type|Found no NVIDIA driver on your system|No CUDA GPUs are available"
        r"|CUDA error: no CUDA-capable device is detected|libcuda\.so\.1: cannot open shared object file|Unexpected "
        r"error from "
        r"cudaGetDeviceCount\(\).{0,200}Error (?:100|35|36|803|804):",
        "no usable driver or GPU",
        "Run nvidia-smi: the driver is not loaded, does not fit its library, or shows this service no GPU.",
    ),
    # compile-cache-corrupt
    rule(
        "compile-cache-corrupt",
        r"(?:pickle data was truncated|Ran out of input|invalid load key|unpickling stack underflow|Invalid magic "
        r"number; corrupt file"
        r"|File is not a zip file|bad marshal data|Error -\d+ while decompressing|Expecting value: line 1 column 1"
        r"|Unterminated string starting at|not a valid (?:AOT|compile) )",
        "a file of the compile cache is damaged",
        "Move this model's torch_compile_cache directory aside (a file in it is cut off) and start once with a cold "
        "cache; "
        "never let two engines share it while they compile.",
        when=_compiling,
    ),
    rule(
        "compile-cache-corrupt",
        r"\[Errno 2\] No such file or directory: '[^']{0,300}(?:torch_compile_cache|torchinductor|\.triton"
        r"|triton/cache|torch_aot_compile)[^']{0,300}'"
        r"|[^'`]{0,200}(?:torch_compile_cache|torchinductor_\w+|\.triton/cache)/\S{0,300}: (?:file too short|invalid "
        r"ELF "
        r"header)",
        "a file of the compile cache is missing or damaged",
        "Move the compile cache (torch_compile_cache, torchinductor, triton) aside and start once with a cold one.",
    ),
    # shm-too-small
    rule(
        "shm-too-small",
        r"Insufficient space in /dev/shm for (?P<what>.{1,120}?): (?P<need>\d+) MiB required, (?P<have>\d+) MiB free",
        "{have} MiB are free in /dev/shm, {need} MiB are needed",
        "Enlarge /dev/shm: {need} MiB are needed and {have} MiB are free (remount it bigger; --shm-size or "
        "--ipc=host in a container).",
    ),
    rule(
        "shm-too-small",
        r"[^'`]{0,200}(?:/dev/shm|shared memory segment|posix_fallocate).{0,300}No space left on device",
        "no room is left in /dev/shm",
        _SHM,
        kinds=(Kind.ERROR, Kind.NATIVE),
    ),
    rule(
        "shm-too-small",
        r"\[Errno 28\] No space left on device|[^'`]{0,40}unable to (?:mmap|open shared memory object|allocate shared "
        r"memory|resize)"
        r"|[^'`]{0,80}(?:out of|insufficient) shared memory \(shm\)",
        "no room is left in /dev/shm",
        _SHM,
        when=lambda situation, match: "Errno 28" not in match[0] or _shm(situation, match),
    ),
    rule(
        "shm-too-small",
        r"[^'`]{0,80}(?:Bus error\b.{0,200}(?:shared memory|shm)|received signal: Bus error|Fatal Python error: Bus "
        r"error)",
        "a bus error, as a full /dev/shm gives it",
        _SHM,
        kinds=(Kind.ERROR, Kind.NATIVE),
        tier=Tier.SYMPTOM,
    ),
    # disk-full
    rule(
        "disk-full",
        r"(?:\[Errno 28\] )?No space left on device(?:: '(?P<path>[^']{1,300})')?",
        "the disk is full",
        "Free space on the disk of the caches and the model: {path} could not be written.",
        plain="Free space on the disk that holds the caches (VLLM_CACHE_ROOT, HF_HOME, TMPDIR) and the model.",
        when=_not_shm,
    ),
    rule(
        "disk-full",
        r"\[Errno 122\] Disk quota exceeded|[^'`]{0,200}(?:error writing to|writing .{1,200}) ?.{0,200}: No space left "
        r"on device"
        r"|I/O error: No space left on device|[^'`]{0,60}No space left on device \(os error 28\)",
        "the disk is full or the quota is used up",
        "Free space (or raise the quota) on the disk that holds the caches (VLLM_CACHE_ROOT, HF_HOME, TMPDIR) and "
        "the model.",
        when=_not_shm,
        kinds=(Kind.ERROR, Kind.NATIVE),
    ),
    # download-incomplete
    rule(
        "download-incomplete",
        r"Consistency check failed: file should be of size (?P<want>\d+) but has size (?P<got>\d+) "
        r"\((?P<file>[^)]{1,200})\)",
        "{file} ended at {got} of {want} bytes",
        "The download of {file} ended early: try again (it resumes), fetch the model before the service starts, and "
        "force a fresh "
        "download of that file if it repeats.",
    ),
    rule(
        "download-incomplete",
        r"(?:HTTPS?ConnectionPool\(|\('Connection (?:broken|aborted)|IncompleteRead\(|Connection broken: |Read timed "
        r"out"
        r"|An error occurred while downloading using|Data processing error: |[^'`]{0,40}CAS service error|50[0234] "
        r"Server Error"
        r"|429 Client Error|Response ended prematurely|peer closed connection without sending complete message body"
        r"|\[Errno -3\] Temporary failure in name resolution|\[Errno -2\] Name or service not known"
        r"|[^'`]{0,60}Max retries exceeded with url)",
        "a download broke off",
        "The hub could not be read to the end: try again (it resumes), and fetch the model before the service starts.",
    ),
)
