"""One reading of the GPUs for a command line that ends at once.

NVML can hang in the driver, and a thread stuck there could never be ended. So the reading happens
in a child process of this very module; what does not answer in time is known to be silent.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_supervisor.core.check.observed import GpuObservation, GpuSeen

DEADLINE_S = 2.0


def read_once(deadline_s: float = DEADLINE_S) -> GpuObservation | None:
    """The GPUs as NVML names them now; None without a driver."""
    command = [sys.executable, "-P", "-c", "from vllm_supervisor.adapters.nvml_once import main; main()"]
    # The child must find this package wherever the parent found it.
    roots = (os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2]))
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, roots))}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process stuck in the driver does not even die; it is not waited for.
            process.communicate(timeout=0.2)
        return GpuObservation((), silent=True)
    return parse(output) if process.returncode == 0 else None


def parse(output: bytes) -> GpuObservation | None:
    """The observation out of the child's JSON; None when it is none."""
    try:
        document = json.loads(output)
        gpus = tuple(
            GpuSeen(
                index=int(gpu["index"]),
                uuid=str(gpu["uuid"]),
                name=str(gpu["name"]),
                total_bytes=int(gpu["total"]),
                used_bytes=int(gpu["used"]),
                compute_capability=(int(gpu["capability"][0]), int(gpu["capability"][1])),
                processes=tuple((int(pid), int(size)) for pid, size in gpu["processes"]),
            )
            for gpu in document["gpus"]
        )
        return GpuObservation(gpus, str(document["driver"]), tuple(int(index) for index in document.get("lost", ())))
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def main() -> None:
    """Print one reading as JSON; exit 1 without a driver. Only this child loads the library."""
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = _optional(pynvml, "nvmlSystemGetDriverVersion")
        lost: list[int] = []
        document = {"driver": _text(driver or ""), "gpus": list(_gpus(pynvml, lost)), "lost": lost}
    except pynvml.NVMLError:
        sys.exit(1)
    sys.stdout.write(json.dumps(document))


def _gpus(pynvml: Any, lost: list[int]) -> Iterator[dict[str, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        # A GPU that fell off the bus is still counted; the check says which one it was.
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError:
            lost.append(index)
            continue
        capability = _optional(pynvml, "nvmlDeviceGetCudaComputeCapability", handle)
        running = _optional(pynvml, "nvmlDeviceGetComputeRunningProcesses", handle)
        yield {
            "index": index,
            "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
            "name": _text(pynvml.nvmlDeviceGetName(handle)),
            "total": memory.total,
            "used": memory.used,
            "capability": list(capability or (0, 0)),
            "processes": [[process.pid, process.usedGpuMemory or 0] for process in running or ()],
        }


def _optional(pynvml: Any, call: str, *arguments: Any) -> Any:
    """A value that some boards, drivers and bindings do not give; None then."""
    try:
        return getattr(pynvml, call)(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
