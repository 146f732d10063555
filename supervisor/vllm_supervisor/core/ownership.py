"""Which processes are ours: children and their descendants, our unit's cgroup, our start id. Nothing weaker.

A process of the same user, the same program, even the same arguments is a stranger unless one of
these three holds (design 10).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .events import Role

START_ID = "VSUP_START_ID"
"""The variable that marks the processes of one start. SPT_NOENV=1 beside it keeps setproctitle from
wiping /proc/PID/environ (vLLM retitles its processes)."""


RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which Ray's driver looks for the configuration of its job."""


def ray_marks(start_id: str, configured: Mapping[str, str]) -> dict[str, str]:
    """What makes the workers of a Ray cluster ours, wherever it was started.

    They are children of the raylet, outside of our cgroup. The job's runtime environment puts our start id into the
    environment that each of them is started with (seen with Ray 2.60.0: it stands in /proc/PID/environ).

    Args:
        start_id: The mark of this start.
        configured: The engine's configured environment; a job configuration of the operator's own is left alone.
    """
    if RAY_JOB in configured:
        return {}
    job = {"runtime_env": {"env_vars": {START_ID: start_id, "SPT_NOENV": "1"}}}
    return {RAY_JOB: json.dumps(job), "RAY_USAGE_STATS_ENABLED": configured.get("RAY_USAGE_STATS_ENABLED", "0")}


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as /proc shows it. `start_id` is None where the environment cannot be read."""

    pid: int
    ppid: int
    name: str
    command: str = ""
    cgroup: str = ""
    start_id: str | None = None
    zombie: bool = False


def owned(processes: tuple[Seen, ...], *, self_pid: int, start_id: str, unit_cgroup: str) -> tuple[Seen, ...]:
    """The processes that belong to the engine of this start.

    Args:
        processes: Every process that could be seen.
        self_pid: Our own pid; we are a subreaper, so orphans of the engine become our children.
        start_id: The mark of this start.
        unit_cgroup: The cgroup of our own unit; empty in the foreground, where the cgroup is a
            login session's and holds other things.
    """
    by_pid = {process.pid: process for process in processes}

    def ours(process: Seen) -> bool:
        if process.pid == self_pid:
            return False
        if process.start_id == start_id:
            return True
        if unit_cgroup and (process.cgroup == unit_cgroup or process.cgroup.startswith(unit_cgroup + "/")):
            return True
        seen = {process.pid}
        parent = by_pid.get(process.ppid)
        while parent is not None and parent.pid not in seen:
            if parent.pid == self_pid:
                return True
            seen.add(parent.pid)
            parent = by_pid.get(parent.ppid)
        return process.ppid == self_pid

    return tuple(process for process in processes if ours(process))


_COMPILER = re.compile(r"\b(nvcc|cicc|ptxas|cudafe\+\+|gcc|g\+\+|cc1|cc1plus|clang|ld|ninja)\b")


_PARTS = frozenset({Role.API_SERVER, Role.ENGINE_CORE, Role.WORKER})


def role_of(process: Seen, main_pid: int | None) -> Role:
    """What part of the engine a process is, by its title (F3.1); the main process is the API server."""
    if process.pid == main_pid:
        return Role.API_SERVER
    title = process.command or process.name
    if "::EngineCor" in title or "::EngineCor" in process.name:
        return Role.ENGINE_CORE
    if "ray::RayWorker" in title or "::Worker" in title or "::Worker" in process.name:
        return Role.WORKER
    if "::APIServer" in title or "::APIServer" in process.name:
        return Role.API_SERVER
    if _COMPILER.search(process.name) or "compile_worker" in title:
        return Role.COMPILER
    return Role.OTHER


def roles_of(processes: Iterable[Seen], main_pid: int | None) -> dict[int, Role]:
    """The part of the engine that each process is.

    A process that starts a program is two of the same title for a moment: between fork and exec, or between fork and
    the end of what it was forked for. The child is no part of the engine, and its end is no death. Measured (0.32 on
    the CPU): a worker starts a compiler for the first request, and on a busy host the moment is long enough to be seen.
    """
    by_pid = {process.pid: process for process in processes}
    roles: dict[int, Role] = {}
    for pid, process in by_pid.items():
        role, parent = role_of(process, main_pid), by_pid.get(process.ppid)
        copied = parent is not None and (parent.command, parent.name) == (process.command, process.name)
        roles[pid] = Role.OTHER if copied and role in _PARTS else role
    return roles


_RANK = re.compile(r"::EngineCore_DP(\d+)")


def engines_of(processes: Iterable[Seen]) -> dict[str, frozenset[int]]:
    """The processes of each of several engines by its rank: its core and what descends from that.

    A dense model's workers bear no rank in their title (0.32); an engine alone has none either, and is not told.
    """
    seen = tuple(processes)
    children: dict[int, list[int]] = {}
    for process in seen:
        children.setdefault(process.ppid, []).append(process.pid)
    found: dict[str, frozenset[int]] = {}
    for process in seen:
        if title := _RANK.search(process.command):
            mine, todo = {process.pid}, [process.pid]
            while todo:
                new = [pid for pid in children.get(todo.pop(), ()) if pid not in mine]
                mine.update(new)
                todo += new
            found[title[1]] = found.get(title[1], frozenset()) | mine
    return found


def holds_weights(process: Seen, main_pid: int | None) -> bool:
    """Whether a process of `vllm preload` holds weights: it gives them no title of their own (vLLM 0.32)."""
    return process.ppid == main_pid and "multiprocessing.spawn" in process.command and "spawn_main" in process.command


def unit_cgroup(line: str) -> str:
    """The cgroup path of our own unit from a line of /proc/self/cgroup; empty outside a service.

    Only a `.service` counts: a session's or user's slice holds processes that are not ours.
    """
    path = line.rsplit(":", 1)[-1].strip()
    for part in path.split("/"):
        if part.endswith(".service") and not part.startswith("user@"):
            return path[: path.index(part) + len(part)]
    return ""
