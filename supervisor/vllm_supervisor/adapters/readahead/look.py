"""A look at the memory of the machine and of our cgroup (proc(5), the kernel's cgroup-v1 and -v2 documents)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vllm_supervisor.core.readahead.memory import Memory, read_cgroup, read_meminfo, read_pressure, tightest

_FILES = (
    "memory.max",
    "memory.high",
    "memory.current",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.stat",
    "memory.pressure",
)


def look(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Memory | None:
    """Memory now, by the tightest bound that holds for us; None where /proc does not tell."""
    machine = read_meminfo(_text(proc / "meminfo"))
    if machine is None:
        return None
    machine = replace(machine, pressure=read_pressure(_text(proc / "pressure" / "memory")))
    looks = [machine]
    for place in _places(_text(proc / "self" / "cgroup"), cgroups):
        found = read_cgroup({name: _text(place / name) for name in _FILES})
        if found is not None:
            looks.append(found)
    return tightest(tuple(looks))


def _places(text: str, cgroups: Path) -> list[Path]:
    """Our cgroup's directory and all above it, for either version."""
    found: list[Path] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            roots = [cgroups, cgroups / "unified"]
        elif "memory" in controllers.split(","):
            roots = [cgroups / "memory"]
        else:
            continue
        for root in roots:
            inner = Path(path.lstrip("/"))
            found += [root / part for part in (inner, *inner.parents) if ".." not in part.parts]
    return list(dict.fromkeys(found))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
