"""What one process does at this moment, in a few words, from /proc (proc(5)): for the tree of an incident."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_supervisor.core.words import duration, size

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel, cannot be killed", "T": "stopped", "Z": "zombie"}


def detail(pid: int, proc: Path = Path("/proc")) -> str:
    """`sleeping in futex_wait, 93 threads, 70.8 GiB resident, 12 s CPU`; empty for a process that is gone."""
    fields = _text(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(fields) < 22:
        return ""
    where = _text(proc / str(pid) / "wchan").strip()
    doing = _STATES.get(fields[0], fields[0])
    words = [f"{doing} in {where}" if where not in {"", "0"} else doing]
    words.append(f"{fields[17]} threads")
    words.append(f"{size(int(fields[21]) * _PAGE)} resident")
    words.append(f"{duration((int(fields[11]) + int(fields[12])) / _TICK)} CPU")
    return ", ".join(words)


def driver_version(proc: Path = Path("/proc")) -> str:
    """What the NVIDIA driver says of itself; empty where there is none."""
    return _text(proc / "driver/nvidia/version").partition("\n")[0].strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
