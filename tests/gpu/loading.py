"""Reading ahead on a real engine: the same start with and without it, with a cold and a warm page cache."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from eyes import Nvml
from instance import Instance
from machine import Lab

ROUNDS = (
    ("first", "off"),
    ("cold", "off"),
    ("cold", "auto"),
    ("warm", "off"),
    ("warm", "auto"),
    ("cold", "auto"),
    ("cold", "off"),
    ("cold", "4GiB"),
)
"""In this order, so that a machine that becomes warmer or slower favours nobody; as many as the time allows. The first
start reads vLLM's own files from the disk and compiles: it is shown and compared with nothing."""

START_S = 75.0
"""What a start and its end take at most, as far as it is known before the first one."""

UNTIL_LOADED = ("launching", "configuring", "connecting", "loading-weights")


def readahead(lab: Lab, nvml: Nvml, model: Path, tp: int) -> None:
    """Start after start; each is a record with its phases and what was read ahead."""
    files = sorted(model.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    lab.out.record(
        "readahead-checkpoint", shards=len(files), bytes=size, tp=tp, file_system=_file_system(files[0]),
        memory={line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()[:5]},
        read_ahead_kb=_queue("read_ahead_kb"), scheduler=_queue("scheduler"),
    )  # fmt: skip
    longest = START_S
    for number, (cache, setting) in enumerate(ROUNDS):
        lab.need(longest, f"{cache} {setting}")
        began = time.monotonic()
        (_drop if cache == "cold" else _warm)(files)
        prepared, resident = round(time.monotonic() - began, 2), _resident(files)
        lab.out.record("readahead-cache", cache=cache, setting=setting, resident=resident, bytes=size)
        pids = _one(lab, model, tp, number, cache=cache, setting=setting, size=size, prepared=prepared)
        if lab.device == "cuda":
            nvml.free_since(time.monotonic(), [1 << 60] * nvml.count, pids, 20)
        longest = max(min(longest, (time.monotonic() - began) * 1.3), (time.monotonic() - began) * 1.1)


def _one(
    lab: Lab, model: Path, tp: int, number: int, *, cache: str, setting: str, size: int, prepared: float
) -> set[int]:
    tables = {"load": {"readahead": setting}, "smoke": {"on_start": "off"}}
    instance = Instance(lab, f"read-{number}", model, port=8100 + number, tp=tp, tables=tables).start()
    try:
        ready = instance.wait_ready(300)
        status = instance.status()
        phases: dict[str, float] = status.get("phases") or {}
        before = sum(phases.get(name, 0.0) for name in UNTIL_LOADED)
        lab.out.record(
            "readahead", cache=cache, setting=setting, ready_seconds=round(ready - instance.began, 3),
            weights_seconds=phases.get("loading-weights"), until_loaded_seconds=round(before, 3), phases=phases,
            readahead=status.get("readahead"), account=status.get("account"), bytes=size, prepared_seconds=prepared,
            told=[pairs["STATUS"] for _, _, pairs in instance.notes if "STATUS" in pairs][:40],
        )  # fmt: skip
        pids = set(instance.engine_pids())
        instance.sigterm()
        code = instance.wait_exit(60)
        left = [pid for pid in pids if _alive(pid)]
        if code != 0 or left:
            lab.out.record("readahead-end", exit=code, left=left)
        return pids
    finally:
        instance.close()


def _drop(files: list[Path]) -> None:
    """These files out of the page cache, and nothing else."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _resident(files: list[Path]) -> int | None:
    """Bytes of these files in the page cache, so that "cold" and "warm" are seen and not believed; None if unknown."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(map(int, done.stdout.split()))


def _warm(files: list[Path]) -> None:
    for file in files:
        with file.open("rb", buffering=0) as data:
            while data.read(16 << 20):
                continue


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _file_system(path: Path) -> str:
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point, found = line.split()[1:3]
        if str(path.resolve()).startswith(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _queue(name: str) -> dict[str, str]:
    disks = Path("/sys/block").glob(f"*/queue/{name}")
    return {path.parts[3]: path.read_text().strip() for path in disks if not path.parts[3].startswith(("loop", "ram"))}


def table(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Lines of the report: each kind of start with the median of its figures."""
    found = []
    for cache, setting in dict.fromkeys((row["cache"], row["setting"]) for row in rows):
        same = [row for row in rows if (row["cache"], row["setting"]) == (cache, setting)]

        def middle(name: str, same: list[dict[str, Any]] = same) -> float:
            values = sorted(row[name] or 0.0 for row in same)
            return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2

        seen = [row["readahead"] or {} for row in same]
        hit = "-" if not seen[0].get("hit_ratio") else f"{seen[0]['hit_ratio']:.0%}"
        rate = "-" if not seen[0].get("disk_rate") else f"{seen[0]['disk_rate'] / 1e9:.2f} GB/s"
        found.append((
            cache, setting, len(same), f"{middle('weights_seconds'):.2f}", f"{middle('until_loaded_seconds'):.2f}",
            f"{middle('ready_seconds'):.1f}", hit, rate,
        ))  # fmt: skip
    return found


COLUMNS = ("cache", "load.readahead", "starts", "weights s", "launch to weights loaded s", "READY s", "hit", "disk")
