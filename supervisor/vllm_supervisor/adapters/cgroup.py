"""The memory cgroup's own counter of processes that the kernel killed (cgroup v2, and v1 beside it).

`memory.events` (v2) and `memory.oom_control` (v1, since Linux 4.13) both have a line `oom_kill N`.
The counter is raised before the victim gets its SIGKILL, so whoever sees the death sees the count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vllm_supervisor.core.ownership import unit_cgroup

PROC, ROOT = Path("/proc"), Path("/sys/fs/cgroup")


class OomCounter:
    """The counter of the service that a process runs in.

    Args:
        pid: The process; None has no counter.
        proc: Where processes are looked up.
        root: Where the cgroups are mounted.

    Attributes:
        cgroup: The unit's path below the root; empty where there is none.
    """

    def __init__(self, pid: int | str | None = "self", *, proc: Path = PROC, root: Path = ROOT) -> None:
        self.cgroup = ""
        self._file: Path | None = None
        for line in _text(proc / str(pid) / "cgroup").splitlines() if pid is not None else ():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            unit = unit_cgroup(path)
            if not unit:
                continue
            self.cgroup = self.cgroup or unit
            if number == "0" and not controllers:
                places = [root / unit[1:] / "memory.events", root / "unified" / unit[1:] / "memory.events"]
            elif "memory" in controllers.split(","):
                places = [root / "memory" / unit[1:] / "memory.oom_control"]
            else:
                continue
            self._file = next((place for place in places if place.is_file()), self._file)

    def read(self) -> int | None:
        """Processes killed so far; None where nobody counts. Reads one small file of the kernel."""
        if self._file is None:
            return None
        for line in _text(self._file).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
        return None


def of_our_unit(environ: Mapping[str, str]) -> OomCounter:
    """The counter of the unit whose main process we are (systemd.exec(5), SYSTEMD_EXEC_PID).

    In the foreground the cgroup is a login session's, where the kernel may have killed anything.
    """
    return OomCounter("self" if environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()) else None)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
