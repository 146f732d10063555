"""Whether an address can be bound on this machine, tried as the engine would do it, and a port by us."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import suppress
from pathlib import Path

RESOLVE_S = 1.0
"""Longest wait for a name server: a dead one must not hold a start up."""
_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_NET_BIND_SERVICE = 10
_REASONS = {
    errno.EADDRNOTAVAIL: "it is no address of this machine",
    errno.EAFNOSUPPORT: "this machine has no IPv6",
}


def unbindable(host: str) -> str:
    """Why nobody can listen on this address, in a few words; empty when one can.

    vLLM binds IPv6 where the address is one, else IPv4, and lets Python resolve a name. A name that is not resolved
    within a second counts as bindable.

    Args:
        host: Address or name.
    """
    answer: list[str] = []
    # A resolver cannot be interrupted; a daemon thread is left to its own end.
    asker = threading.Thread(target=lambda: answer.append(_try(host)), daemon=True)
    asker.start()
    asker.join(RESOLVE_S)
    return answer[0] if answer else ""


def first_free_port() -> int:
    """The lowest port that needs no right (ip(7), ip_unprivileged_port_start)."""
    with suppress(OSError, ValueError):
        return int(_UNPRIVILEGED.read_text())
    return 1024


def may_bind(port: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process may bind a port: a low one needs CAP_NET_BIND_SERVICE (capabilities(7))."""
    if port >= first_free_port():
        return True
    try:
        line = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
        return bool(int(line.split()[1], 16) >> _NET_BIND_SERVICE & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return True


def _try(host: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind((host, 0))
    except socket.gaierror:
        return "it is no address, and no name that this machine resolves"
    except OSError as problem:
        return _REASONS.get(problem.errno or 0, "")
    except ValueError:  # text that cannot be a name: UnicodeError, or a zero byte
        return "it is no address, and no name"
    return ""
