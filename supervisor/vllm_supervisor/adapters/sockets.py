"""Who holds a TCP port, and how many connections it has, from /proc/net/tcp (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LISTEN, _ESTABLISHED = "0A", "01"


def listeners(port: int, proc: Path = Path("/proc")) -> set[int]:
    """The inodes of the sockets that listen on `port`, on any address."""
    return {inode for state, inode in _rows(port, proc) if state == _LISTEN and inode}


def connections(port: int, proc: Path = Path("/proc")) -> int:
    """How many connections to `port` are established, seen from the server's side."""
    return sum(1 for state, _ in _rows(port, proc) if state == _ESTABLISHED)


def _rows(port: int, proc: Path) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    wanted = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            text = (proc / "net" / name).read_text()
        except OSError:
            continue
        for line in text.splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[1].endswith(wanted):
                found.append((fields[3], int(fields[9])))
    return found


def holder(port: int, ours: Iterable[int], proc: Path = Path("/proc")) -> str:
    """Who listens on `port` when none of our processes does; empty when one does or it cannot be known.

    A verdict needs certainty: every process of ours must have let us look at its descriptors.
    """
    inodes = listeners(port, proc)
    if not inodes:
        return ""
    mine = list(ours)
    for pid in mine:
        held = _held(pid, inodes, proc)
        if held is None or held:
            return ""
    for entry in os.listdir(proc):
        if entry.isdigit() and int(entry) not in mine and _held(int(entry), inodes, proc):
            return f"port {port} is held by another process: pid {entry} ({_name(int(entry), proc)})"
    return f"port {port} is held by a process that is not our engine's"


def _held(pid: int, inodes: set[int], proc: Path) -> bool | None:
    """Whether a process holds one of the sockets; None when its descriptors cannot be read."""
    directory = proc / str(pid) / "fd"
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    for name in names:
        try:
            target = str((directory / name).readlink())
        except OSError:
            continue
        if target.startswith("socket:[") and int(target[8:-1]) in inodes:
            return True
    return False


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return "?"
