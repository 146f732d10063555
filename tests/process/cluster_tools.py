"""Several daemons of one model with fake engines: what the tests of a cluster share."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process.daemon_tools import marked, rows, running, told, until_ready
from process.harness import Daemon

HEADLESS = {"never_listen": True, "no_readiness_line": True}
"""What a node without a port looks like from outside."""

SECRET = "0123456789abcdef0123456789abcdef"

HEAD_ADDRESS = "10.213.0.1"
"""The first end of the cable."""

WIRE = "wire"
"""The name of both ends as network interfaces."""

Start = Callable[..., Daemon]


@dataclass(frozen=True)
class Cable:
    """Two network namespaces, and what connects them."""

    names: tuple[str, str]

    def inside(self, rank: int) -> tuple[str, ...]:
        """What stands before a command that runs in a namespace."""
        return "ip", "netns", "exec", self.names[rank]

    def up(self) -> None:
        """Mend it."""
        _ip("-n", self.names[1], "link", "set", WIRE, "up")

    def down(self) -> None:
        """Cut it."""
        _ip("-n", self.names[1], "link", "set", WIRE, "down")


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Two namespaces with a pair of virtual network cards between them; needs root and iproute2."""
    names = (f"vs{os.getpid()}n0", f"vs{os.getpid()}n1")
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[0], "link", "add", WIRE, "type", "veth", "peer", "name", WIRE, "netns", names[1])
        for name, address in zip(names, (HEAD_ADDRESS, "10.213.0.2"), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", WIRE)
            _ip("-n", name, "link", "set", WIRE, "up")
        yield Cable(names)
    finally:
        for name in names:
            with contextlib.suppress(AssertionError):
                _ip("netns", "del", name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, timeout=30, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


@contextlib.contextmanager
def cluster(folder: Path, nnodes: int = 2, head: str = "") -> Iterator[Start]:
    """Gives `node(rank)`, which starts one node; all share address and secret, and are gone afterwards."""
    # An address of the loopback of their own: no other test listens there.
    head = head or ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])
    with contextlib.ExitStack() as stack:

        def node(
            rank: int,
            secret: str = SECRET,
            fake: dict[str, Any] | None = None,
            prefix: tuple[str, ...] = (),
            **more: Any,
        ) -> Daemon:
            here = folder / f"node{rank}"
            credentials = folder / f"credentials-{secret[:4]}"
            credentials.mkdir(exist_ok=True)
            (credentials / "cluster-secret").write_text(secret)
            (credentials / "cluster-secret").chmod(0o600)
            tables = {**more, "cluster": {"nnodes": nnodes, "head": head, "node_rank": rank, **more.get("cluster", {})}}
            fake = {**(HEADLESS if rank else {}), **(fake or {})}
            env = {"CREDENTIALS_DIRECTORY": str(credentials)}
            return stack.enter_context(running(here, fake, env=env, prefix=prefix, **tables))

        yield node


def all_ready(node: Start, nnodes: int = 2) -> list[Daemon]:
    """All nodes by rank, ready."""
    nodes = [node(rank) for rank in range(nnodes)]
    for one in nodes:
        until_ready(one)
    return nodes


def waits_for(daemon: Daemon, name: str) -> None:
    """Until STATUS says whom a node waits for."""
    words = f"Waiting for {name}"
    daemon.wait(lambda: any(text.startswith(words) for text in told(daemon, "STATUS")[-1:]), words)


def ended_alike(reason: str, *nodes: Daemon) -> None:
    """Both ended with one reason and one sentence, to be started again, and left nothing behind."""
    for one in nodes:
        assert one.wait_exit() == 75, one.log()
    ends = [rows(one)[-1] for one in nodes]
    assert [row["reason"] for row in ends] == [reason] * len(nodes), [one.log() for one in nodes]
    said = {told(one, "STATUS")[-1] for one in nodes}
    assert len(said) == 1, said
    assert [marked(one) for one in nodes] == [[] for _ in nodes]


def again_ready(*nodes: Daemon) -> None:
    """Start daemons that have ended once more, as systemd would, and wait until the model answers."""
    before = [len(told(one, "READY")) for one in nodes]
    for one in nodes:
        one.start()
    for one, count in zip(nodes, before, strict=True):
        one.wait(lambda one=one, count=count: len(told(one, "READY")) > count, "READY=1 again")


def arguments(pid: int) -> list[str]:
    """The command line of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def main_of(daemon: Daemon) -> int:
    """The main process of a node's engine."""
    return next(pid for pid in marked(daemon) if "--node-rank" in arguments(pid))
