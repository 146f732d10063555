"""Rules: what the kernel and systemd say, and the host's memory."""

from __future__ import annotations

import re
from typing import Final

from vllm_supervisor.core import xid

from .rule import Fields, Kind, Rule, Situation, Tier, rule

_OURS = re.compile(r"VLLM|vllm|python|pt_main|ray|Worker|EngineCore|APIServer")
_FREE_RAM = "free memory or add swap, drop CPU offload and parallel loaders, and check the limits before the retry."


def _ours(situation: Situation, match: re.Match[str]) -> bool:
    groups = match.groupdict()
    pid = groups.get("pid")
    return bool(_OURS.match(groups.get("name") or "")) or (pid is not None and int(pid) in situation.pids)


def _of(slug: str) -> str:
    return "|".join(str(number) for number, entry in sorted(xid.CATALOGUE.items()) if entry.slug == slug)


def _meaning(groups: Fields) -> Fields:
    return {"meaning": xid.lookup(int(groups["xid"])).meaning}


def _xid(slug: str, advice: str, tier: int) -> Rule:
    regex = rf"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>{_of(slug)})\b"
    hardware = slug in xid.HARDWARE
    return rule(
        slug,
        regex,
        "Xid {xid} on GPU {gpu}: {meaning}",
        advice,
        kinds=(Kind.KERNEL,),
        tier=tier,
        fatal=hardware,
        derive=_meaning,
    )


RULES: Final[tuple[Rule, ...]] = (
    # the kernel on GPUs
    _xid(
        "gpu-lost",
        "GPU {gpu} dropped off the PCIe bus: do not restart on it; power-cycle or reboot the host and check power, "
        "seating and riser of that card.",
        Tier.HARDWARE,
    ),
    _xid(
        "gpu-fault",
        "GPU {gpu} reports {meaning}: drain it, reset it (or reboot), and replace the card if it comes back.",
        Tier.HARDWARE,
    ),
    _xid(
        "nvlink-fault",
        "An NVLink of GPU {gpu} failed ({meaning}): reset the GPUs or reboot, and have the link checked if it comes "
        "back.",
        Tier.HARDWARE,
    ),
    _xid(
        "cuda-fault",
        "A kernel of the program failed on GPU {gpu} ({meaning}): restart, and after a third time within an hour "
        "change the version.",
        Tier.ECHO,
    ),
    rule(
        "gpu-lost",
        r"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+): )?.{0,60}GPU has fallen off the bus",
        "a GPU has fallen off the bus",
        "A GPU dropped off the PCIe bus: do not restart on it; power-cycle or reboot the host and check power, "
        "seating and riser of that card.",
        kinds=(Kind.KERNEL,),
        tier=Tier.HARDWARE,
        fatal=True,
    ),
    rule(
        "nvlink-fault",
        r"(?:nvidia-nvswitch\d*: |NVRM: ).{0,40}SXid \(PCI:[0-9a-fA-F:.]+\): \d+, Fatal",
        "an NVSwitch reports a fatal error",
        "An NVSwitch reports a fatal error: reset the fabric or reboot, and have the board checked if it comes back.",
        kinds=(Kind.KERNEL,),
        tier=Tier.HARDWARE,
        fatal=True,
    ),
    # host-out-of-memory
    rule(
        "host-out-of-memory",
        r"(?:Memory cgroup out|Out) of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]{1,40})\)",
        "the kernel killed {name} (pid {pid}): no memory left",
        "The kernel killed {name} because the host or its cgroup ran out of RAM: " + _FREE_RAM,
        kinds=(Kind.KERNEL,),
        tier=Tier.HARDWARE,
        fatal=True,
        when=_ours,
    ),
    rule(
        "host-out-of-memory",
        r"oom-kill:.{0,400}task=(?P<name>[^,]{1,40}),pid=(?P<pid>\d+)",
        "the kernel killed {name} (pid {pid}): no memory left",
        "The kernel killed {name} because the host or its cgroup ran out of RAM: " + _FREE_RAM,
        kinds=(Kind.KERNEL,),
        tier=Tier.HINT_OF_HARDWARE,
        fatal=True,
        when=_ours,
    ),
    rule(
        "host-out-of-memory",
        r"(?P<unit>\S{1,80}): (?:A process of this unit has been killed by the OOM killer|Failed with result "
        r"'oom-kill')",
        "the kernel killed a process of {unit}: no memory left",
        "The kernel killed a process of {unit} because the host or its cgroup ran out of RAM: " + _FREE_RAM,
        kinds=(Kind.SYSTEMD,),
        tier=Tier.HINT_OF_HARDWARE + 1,
        fatal=True,
    ),
    rule(
        "host-out-of-memory",
        r"\[Errno 12\] Cannot allocate memory|[^'`]{0,120}(?:DefaultCPUAllocator: (?:can't allocate|not enough) memory)"
        r"|Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired "
        r"CPU memory"
        r"|Unable to allocate [\d.]+ [KMGT]iB for an array",
        "the host's memory does not suffice",
        "The host ran out of RAM: " + _FREE_RAM,
    ),
    rule(
        "host-out-of-memory",
        r"(?<=\bMemoryError: )|MemoryError:?$|std::bad_alloc",
        "the host's memory does not suffice",
        "The host ran out of RAM: " + _FREE_RAM,
        kinds=(Kind.ERROR, Kind.NATIVE),
    ),
)
