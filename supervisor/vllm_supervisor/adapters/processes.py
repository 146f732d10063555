"""The engine's processes, by way of psutil: seeing them, ending them, what they did.

We are a subreaper (prctl), so that an orphan of the engine becomes our child and can be seen,
ended and reaped. Nothing here decides who is ours: `core.ownership` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import psutil

from vllm_supervisor.core import procfs
from vllm_supervisor.core.events import Role
from vllm_supervisor.core.ownership import START_ID, Seen, engines_of, holds_weights, owned, roles_of, unit_cgroup

_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def become_subreaper() -> bool:
    """Make orphans of our descendants our children; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine's processes have used since they began: bytes and seconds.

    `worker_cpu_s` is that of the least busy worker, with the time in which it wanted a processor and got none: on a
    crowded host that is most of it, and a worker that is stopped or waits for its peers has neither.
    """

    read_bytes: int
    resident_bytes: int
    compiler_cpu_s: float
    worker_cpu_s: float | None


class Processes:
    """The processes of one start.

    Args:
        start_id: The mark in the environment of each.
        proc: Where the kernel shows them.
        holds_weights: They are those of the unit that holds the weights.
        elsewhere: Some of them may be children of somebody else (Ray's workers), so that only their mark tells.
    """

    def __init__(
        self, start_id: str, proc: Path = Path("/proc"), *, holds_weights: bool = False, elsewhere: bool = False
    ) -> None:
        self.start_id = start_id
        self._holds_weights = holds_weights
        self._elsewhere = elsewhere
        self._proc = proc
        self._self = os.getpid()
        # Only the main process of a unit owns that unit's cgroup: in the foreground it is a login
        # session's, or that of whatever service the shell belongs to.
        is_main = os.environ.get("SYSTEMD_EXEC_PID") == str(self._self)
        self._cgroup = unit_cgroup(_first_line(proc / "self" / "cgroup")) if is_main else ""
        self._environ: dict[int, tuple[float, str | None]] = {}
        self.helpers: set[int] = set()
        """Pids of our own helper processes, which are no part of the engine."""
        self.engines: dict[str, frozenset[int]] = {}
        """The processes of each of several engines, when their roles were last looked up."""

    def ours(self) -> tuple[Seen, ...]:
        """Every living process that belongs to this start, ourselves excepted."""
        found = owned(self._all(), self_pid=self._self, start_id=self.start_id, unit_cgroup=self._cgroup)
        return tuple(process for process in found if not process.zombie and process.pid not in self.helpers)

    def descendants(self) -> tuple[Seen, ...]:
        """Our living descendants, helpers excepted: the cheap look for every second.

        One stat file a process of the machine is read; titles only of what is ours.
        """
        children: dict[int, list[tuple[int, str]]] = {}
        for entry in os.listdir(self._proc):
            if not entry.isdigit():
                continue
            head = _first_line(self._proc / entry / "stat")
            name, _, rest = head.partition("(")[2].rpartition(")")
            fields = rest.split(maxsplit=2)
            if len(fields) < 2 or fields[0] in "ZX":
                continue
            children.setdefault(int(fields[1]), []).append((int(entry), name))
        found: list[Seen] = []
        todo = [self._self]
        while todo:
            parent = todo.pop()
            for pid, name in children.get(parent, ()):
                if pid in self.helpers:
                    continue
                command = (
                    _bytes(self._proc / str(pid) / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
                )
                found.append(Seen(pid=pid, ppid=parent, name=name, command=command))
                todo.append(pid)
        return tuple(found)

    def _all(self) -> tuple[Seen, ...]:
        seen: list[Seen] = []
        alive: set[int] = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                pid = process.pid
                alive.add(pid)
                status = process.status()
                ppid = process.ppid()
                if ppid == 2 or pid == 2:
                    continue  # kernel threads
                seen.append(
                    Seen(
                        pid=pid,
                        ppid=ppid,
                        name=process.name(),
                        command=" ".join(_quiet(process.cmdline) or ()),
                        cgroup=_first_line(self._proc / str(pid) / "cgroup").rsplit(":", 1)[-1] if self._cgroup else "",
                        start_id=self._start_id_of(process),
                        zombie=status == psutil.STATUS_ZOMBIE,
                    ),
                )
        for pid in self._environ.keys() - alive:
            del self._environ[pid]
        return tuple(seen)

    def _start_id_of(self, process: psutil.Process) -> str | None:
        """The mark in a process's environment; read once for each process, because it cannot change."""
        born = process.create_time()
        known = self._environ.get(process.pid)
        if known is not None and known[0] == born and known[1] is not None:
            return known[1]
        try:
            found = process.environ().get(START_ID)
        except (psutil.Error, OSError):
            found = None
        self._environ[process.pid] = (born, found)
        return found

    def roles(self, main_pid: int | None) -> dict[int, tuple[Role, str]]:
        """The role and name of each of our descendants, and of what of ours is elsewhere."""
        seen = self.descendants()
        if self._elsewhere:
            children = {process.pid for process in seen}
            seen += tuple(process for process in self.ours() if process.pid not in children)
        roles = roles_of(seen, main_pid)
        self.engines = engines_of(seen)
        found = {process.pid: (roles[process.pid], title(process)) for process in seen}
        if self._holds_weights:
            part = (Role.WORKER, "a process that holds weights")
            found |= {process.pid: part for process in seen if holds_weights(process, main_pid)}
        return found

    def hold(self) -> frozenset[int]:
        """SIGSTOP to everything that is ours, so that it makes nothing new before it is killed; their pids."""
        found = self.ours()
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGSTOP)
        return frozenset(process.pid for process in found)

    def kill(self) -> tuple[str, ...]:
        """SIGKILL to everything that is ours; descriptions of what was there."""
        found = self.ours()
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        return tuple(f"pid {process.pid} ({title(process)})" for process in found)

    def usage(self, roles: dict[int, tuple[Role, str]]) -> Usage:
        """What the given processes have used so far; processes that vanish meanwhile count nothing."""
        read = resident = 0
        compiler = 0.0
        workers: list[float] = []
        for pid, (role, _) in roles.items():
            if pid in self.helpers:
                continue  # it was seen in the moment in which it was started
            files = self._proc / str(pid)
            stat = _bytes(files / "stat").decode(errors="replace")
            if not stat:
                continue
            cpu, pages = procfs.used(stat, _TICK)
            resident += pages * _PAGE
            read += procfs.read_bytes(_bytes(files / "io").decode(errors="replace"))
            if role is Role.COMPILER:
                compiler += cpu
            elif role is Role.WORKER:
                workers.append(cpu + procfs.waited_s(_first_line(files / "schedstat")))
        return Usage(read, resident, compiler, min(workers) if workers else None)


def reap(main_pid: int | None, helpers: Container[int] = ()) -> tuple[int, ...]:
    """Collect the exit of orphans that became our children.

    Args:
        main_pid: The engine's main process, whose exit status its own waiter wants.
        helpers: Our own helper processes, likewise.

    Returns:
        The pids that were collected.
    """
    gone: list[int] = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == main_pid or ended.si_pid in helpers:
                break  # the kernel shows one at a time; that one is collected in a moment
            os.waitpid(ended.si_pid, os.WNOHANG)
            gone.append(ended.si_pid)
    return tuple(gone)


def _quiet(call: object) -> list[str] | None:
    try:
        return list(call())  # type: ignore[operator]
    except (psutil.Error, OSError):
        return None


def title(process: Seen) -> str:
    """A process in a few words."""
    # Nothing of its options: they may hold a key, and titles go to logs and incidents.
    return (process.command or process.name).partition(" -")[0][:80].strip() or "?"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _first_line(path: Path) -> str:
    return _bytes(path).partition(b"\n")[0].decode(errors="replace")
