"""Who holds a port or a GPU: pid, name, user and unit of other people's processes."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
from collections.abc import Iterable
from pathlib import Path

import psutil

from vllm_supervisor.core.check.observed import Holder

_LISTEN = "0A"
_ANY = {"", "*", "0.0.0.0", "::"}  # noqa: S104 - compared with, not bound


def describe(pid: int, proc: Path = Path("/proc")) -> Holder:
    """What is known about a process."""
    name = user = ""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        with process.oneshot():
            name, user = process.name(), process.username()
    return Holder(pid, name, user, unit_of(pid, proc))


def unit_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The systemd unit of a process; empty when it has none or cannot be told."""
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        hierarchy, _, path = line.partition("::")
        if hierarchy in {"0", "1:name=systemd"} or line.split(":")[1:2] == ["name=systemd"]:
            parts = (path or line.split(":", 2)[-1]).split("/")
            units = [part for part in parts if re.search(r"\.(service|scope)$", part)]
            if units:
                return units[-1]
    return ""


def gpu_holders(pids: Iterable[int]) -> dict[int, Holder]:
    """By pid what is known about each."""
    return {pid: describe(pid) for pid in dict.fromkeys(pids)}


def port_holder(host: str, port: int, proc: Path = Path("/proc")) -> Holder | None:
    """Who listens on this port at an address that clashes with `host`; None when it is free, or ours."""
    found = [(uid, inode) for address, uid, inode in _listeners(port, proc) if _clash(host, address)]
    if not found:
        return None
    uid, inode = found[0]
    pid = _owner(port)
    if pid == os.getpid():
        return None
    if pid is not None:
        return describe(pid, proc)
    # Another user's sockets do not tell their process to an ordinary one, but they tell the user.
    return Holder(0, "", _user(uid), "") if inode else Holder(0)


def _owner(port: int) -> int | None:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
                return int(connection.pid)
    return None


def _listeners(port: int, proc: Path) -> list[tuple[str, int, int]]:
    """(address, uid, inode) of the sockets that listen on this port, from /proc/net/tcp (proc(5))."""
    found: list[tuple[str, int, int]] = []
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN:
                continue
            address, _, number = fields[1].partition(":")
            if int(number, 16) == port:
                found.append((_address(address), int(fields[7]), int(fields[9])))
    return found


def _address(text: str) -> str:
    """The kernel prints addresses as little-endian words."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _clash(host: str, address: str) -> bool:
    wanted = {"localhost": "127.0.0.1"}.get(host, host)
    if wanted in _ANY or address in _ANY:
        return True
    try:
        return ipaddress.ip_address(wanted) == ipaddress.ip_address(address)
    except ValueError:
        return True


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
