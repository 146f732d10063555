"""Every GPU read by ourselves, beside the supervisor that is judged."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any

from machine import Out


class Nvml:
    """Our own eyes: every GPU some times a second, into nvml.csv and into memory."""

    def __init__(self, out: Out, fake: dict[str, str], period: float = 0.1) -> None:
        self.out, self.period, self.count = out, period, 0
        self.rows: list[tuple[float, list[dict[str, Any]]]] = []
        self._stop = threading.Event()
        if fake:
            sys.path.insert(0, fake["nvml"])
            os.environ["VSUP_FAKE_NVML"] = fake["gpus"]
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - a machine without GPUs
            out.say(f"no NVML here: {error}")
            return
        self.nv = pynvml
        self.count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(self.count)]
        self.read()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def read(self) -> list[dict[str, Any]]:
        now, row = time.monotonic(), []
        for index, handle in enumerate(self._handles):
            nv = self.nv
            memory = _memory(nv, handle)
            listed = nv.nvmlDeviceGetComputeRunningProcesses(handle)
            one = {
                "gpu": index,
                "used": memory.used,
                "total": memory.total,
                "pids": {process.pid: process.usedGpuMemory for process in listed},
                "util": nv.nvmlDeviceGetUtilizationRates(handle).gpu,
                "watts": nv.nvmlDeviceGetPowerUsage(handle) / 1000,
            }
            row.append(one)
            pids = " ".join(f"{pid}:{(size or 0) >> 20}" for pid, size in one["pids"].items())
            self.out.line(
                "nvml.csv",
                f"{now - self.out.began:.2f},{index},{memory.used >> 20},{one['util']},{one['watts']:.0f},{pids}",
            )
        self.rows.append((now, row))
        return row

    def _run(self) -> None:
        while not self._stop.wait(self.period):
            with contextlib.suppress(Exception):
                self.read()

    def used(self) -> list[int]:
        return [one["used"] for one in self.rows[-1][1]] if self.count else []

    def free_since(self, began: float, base: list[int], pids: set[int], timeout: float) -> float | None:
        """Seconds from `began` until no GPU lists one of the pids and memory is back at `base` (64 MiB of play)."""
        if not self.count:
            return None
        until = time.monotonic() + timeout
        while True:
            at, row = self.rows[-1]
            free = all(not pids & one["pids"].keys() and one["used"] <= base[one["gpu"]] + (64 << 20) for one in row)
            if at > began and free:
                for when, before in reversed(self.rows):
                    if when < began or not all(
                        not pids & one["pids"].keys() and one["used"] <= base[one["gpu"]] + (64 << 20) for one in before
                    ):
                        break
                    at = when
                return round(at - began, 3)
            if time.monotonic() > until:
                return None
            time.sleep(self.period / 2)

    def window(self, began: float, ended: float) -> list[dict[str, Any]]:
        """Mean utilisation and power of each GPU in a stretch of time."""
        found = []
        for index in range(self.count):
            rows = [row[index] for at, row in self.rows if began <= at <= ended]
            if rows:
                mean = {key: round(sum(one[key] for one in rows) / len(rows), 1) for key in ("util", "watts")}
                found.append({"gpu": index, **mean})
        return found


def _memory(nv: Any, handle: Any) -> Any:
    try:
        return nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
    except (AttributeError, TypeError, nv.NVMLError):
        return nv.nvmlDeviceGetMemoryInfo(handle)
