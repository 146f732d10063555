"""Two machines, each with a systemd of its own, and a cable between them: what the tests of a real cluster share."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import paths
from lab.machine import Bind, Machine
from system.books import BOOKS
from system.service import Service, toml

NAMES = ("gpu01", "gpu02")
ADDRESSES = ("10.213.0.1", "10.213.0.2")
WIRE = "wire"
CLUSTER = {"nnodes": 2, "nodes": list(NAMES), "head": ADDRESSES[0], "interface": WIRE}
EDITED = "/srv/edited.toml"


@dataclass(frozen=True)
class Pair:
    """gpu01, the head, and gpu02, with the installed product on both."""

    nodes: tuple[Service, Service]

    @property
    def head(self) -> Service:
        """gpu01."""
        return self.nodes[0]

    @property
    def second(self) -> Service:
        """gpu02."""
        return self.nodes[1]

    def cable(self, state: str) -> None:
        """`down` cuts it, `up` mends it."""
        self.second.machine.run(["ip", "link", "set", WIRE, state])

    def edited(self, engine: dict[str, Any], **tables: dict[str, Any]) -> None:
        """What the operator's editor leaves on both: one configuration, the same."""
        base = {"served_model_name": "kimi", "device": "cpu", "overlay": "off"}
        text = toml({"engine": {**base, **engine}, "cluster": CLUSTER, **tables})
        for node in self.nodes:
            node.machine.put(text, EDITED)

    def wait(self, what: str, probe: Callable[[], Any], timeout: float) -> Any:
        """What `probe` gives, once it gives something; fails with what both machines say."""
        until = time.monotonic() + timeout
        while not (value := probe()):
            assert time.monotonic() < until, f"not within {timeout:g} s: {what}\n{self.told()}"
            time.sleep(0.1)
        return value

    def told(self) -> str:
        """The end of both journals."""
        return "\n".join(
            f"--- {name}: {node.show('ActiveState', 'StatusText')}\n{node.journal(30)}"
            for name, node in zip(NAMES, self.nodes, strict=True)
        )

    def both(self, state: str, timeout: float) -> None:
        """Until both units are in this ActiveState."""
        self.wait(
            f"both {state}",
            lambda: [node.show("ActiveState")["ActiveState"] for node in self.nodes] == [state] * 2,
            timeout,
        )

    def starts(self) -> list[list[dict[str, Any]]]:
        """The history of each, oldest first."""
        said = [node.machine.run(["vllm-supervisor", "history", "kimi", "--json"]).stdout for node in self.nodes]
        return [[json.loads(line) for line in text.splitlines()] for text in said]


@contextlib.contextmanager
def two_machines(stage: Path) -> Iterator[Pair]:
    """Boots both with what `make install` laid down in `stage`, and connects them."""
    home = paths.dev_home()
    with contextlib.ExitStack() as stack:
        machines = [
            stack.enter_context(Machine(layers=[stage], binds=[Bind(home)] if home.exists() else [])) for _ in NAMES
        ]
        ends = [["name", WIRE, "netns", str(machine.pid)] for machine in machines]
        done = subprocess.run(
            ["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for machine, name, address in zip(machines, NAMES, ADDRESSES, strict=True):
            machine.run(
                f"hostname {name}; echo {name} >/etc/hostname; ip addr add {address}/24 dev {WIRE}; ip link set {WIRE} up; "
                "systemd-sysusers && systemd-tmpfiles --create vllm-supervisor.conf && systemctl daemon-reload"
            )
        yield Pair((Service(machines[0]), Service(machines[1])))


class PairBook:
    """The marked blocks of a runbook for two machines; the second line of each says where it is run."""

    def __init__(self, pair: Pair, name: str, preamble: str = "") -> None:
        self.pair, self.name, self.preamble = pair, name, preamble
        found = re.findall(r"```sh\n# run\n# on ([\w ]+)\n(.*?)```", (BOOKS / f"{name}.md").read_text(), re.DOTALL)
        self.left = [(where.split(" and "), block) for where, block in found]

    def run(self, where: str, stdin: str = "", timeout: float = 120.0) -> str:
        """The next block, on the machines that it names, which must be these; what it printed, one after the other."""
        names, block = self.left.pop(0)
        assert " and ".join(names) == where, (names, block)
        said = ""
        for name in names:
            machine = self.pair.nodes[NAMES.index(name)].machine
            done = machine.run(f"set -e\n{self.preamble}\n{block}", check=False, timeout=timeout, stdin=stdin)
            said += done.stdout + done.stderr
            assert done.returncode == 0, f"{name}:\n{block}\n{said}\n{self.pair.told()}"
        assert "Traceback" not in said
        return said
