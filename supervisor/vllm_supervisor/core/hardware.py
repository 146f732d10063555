"""What the kernel, the driver and the cgroup say, and when it is a fault of this start.

A line of the kernel is evidence; it becomes a cause only where it concerns our engine. Exit 137
alone proves no lack of memory: anybody can send SIGKILL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from .causes import Cause
from .xid import HARDWARE, lookup

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]{1,20})\): (?P<xid>\d{1,4})\b(?P<rest>.*)", re.DOTALL)
_PID = re.compile(r"\bpid=(?P<pid>\d{1,10})\b")
_KILLED = re.compile(
    r"(?:Memory cgroup out|Out) of memory: Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<name>[^)]{1,40})\)",
)
_OOM_KILL = re.compile(
    r"oom-kill:.{0,400}?(?:task_memcg=(?P<cgroup>[^,]{1,200}),)?task=(?P<name>[^,]{1,40}),pid=(?P<pid>\d{1,10})",
)

KILLED_STATUSES: Final = frozenset({-9, 137})
"""How an engine ends that the kernel killed, and one that anybody else killed, too."""

_MEMORY_ADVICE: Final = (
    "The host or the unit's cgroup ran out of RAM: free memory or add swap, drop CPU offload and parallel loaders, "
    "and check MemoryMax= before the retry."
)
_ADVICE: Final[dict[str, str]] = {
    "gpu-lost": "Do not restart on it: power-cycle or reboot the host and check power, seating and riser of that card.",
    "gpu-fault": "Drain that GPU, reset it (or reboot), and replace the card if it comes back.",
    "nvlink-fault": "Reset the GPUs or reboot, and have the link checked if it comes back.",
}


@dataclass(frozen=True, slots=True)
class XidLine:
    """A line of the driver about one GPU.

    Attributes:
        gpu: Its PCI address as the driver writes it.
        xid: The number.
        pid: The process that it names, None where it names none.
    """

    gpu: str
    xid: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class OomLine:
    """A line of the kernel about a process that it killed.

    Attributes:
        pid: The process.
        name: Its name.
        cgroup: Its memory cgroup, empty where the line does not say.
    """

    pid: int
    name: str
    cgroup: str = ""


def read_kernel(message: str) -> XidLine | OomLine | None:
    """What a line of the kernel says, if it is one that concerns GPUs or memory."""
    if found := _XID.search(message):
        named = _PID.search(found["rest"])
        return XidLine(found["gpu"], int(found["xid"]), int(named["pid"]) if named else None)
    if found := _KILLED.search(message):
        return OomLine(int(found["pid"]), found["name"])
    if found := _OOM_KILL.search(message):
        return OomLine(int(found["pid"]), found["name"], found["cgroup"] or "")
    return None


def xid_cause(where: str, xid: int, evidence: str) -> Cause | None:
    """The cause that an Xid proves by itself; None for errors of programs and for consequences.

    Args:
        where: The GPU, as people know it.
        xid: The number.
        evidence: The line, or what stands for one.
    """
    entry = lookup(xid)
    if entry.slug is None or entry.slug not in HARDWARE:
        return None
    return Cause(entry.slug, evidence, summary=f"Xid {xid} on GPU {where}: {entry.meaning}", advice=_ADVICE[entry.slug])


def xid_is_ours(line: XidLine, pids: Collection[int], *, all_gpus: bool) -> bool:
    """Whether the driver's line concerns this engine.

    Args:
        line: The line.
        pids: Every process that the engine has, or had.
        all_gpus: The engine uses every GPU of the machine, as far as is known.
    """
    return line.pid in pids if line.pid is not None else all_gpus


def oom_cause(line: OomLine, evidence: str, pids: Collection[int], unit_cgroup: str) -> Cause | None:
    """The cause when the kernel killed a process of ours; None when it was another's.

    Args:
        line: The kernel's line.
        evidence: The same as it was printed.
        pids: Every process that the engine has, or had.
        unit_cgroup: The cgroup of our unit, empty in the foreground.
    """
    inside = unit_cgroup and (line.cgroup == unit_cgroup or line.cgroup.startswith(unit_cgroup + "/"))
    if line.pid not in pids and not inside:
        return None
    summary = f"the kernel killed {line.name} (pid {line.pid}): no memory left"
    return Cause("host-out-of-memory", evidence, summary=summary, advice=_MEMORY_ADVICE)


def oom_counted(before: int | None, now: int | None) -> Cause | None:
    """The cause when the cgroup's own counter of OOM kills has grown; both None where there is no counter."""
    if before is None or now is None or now <= before:
        return None
    evidence = f"oom_kill {before} -> {now} in the memory cgroup of the unit"
    summary = f"the kernel killed {now - before} of the unit's processes: no memory left"
    return Cause("host-out-of-memory", evidence, summary=summary, advice=_MEMORY_ADVICE)


def fresh_xids(
    seen: Mapping[tuple[str, int], int], records: Mapping[tuple[str, int], int]
) -> list[tuple[tuple[str, int], int]]:
    """The Xid events that are new: ((GPU, Xid), how many more), from two readings of what adds up."""
    return [(key, count - seen.get(key, 0)) for key, count in records.items() if count > seen.get(key, 0)]
