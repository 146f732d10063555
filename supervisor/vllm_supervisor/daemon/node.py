"""The settings of one node of a cluster, and what must be equal on all of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor import __version__
from vllm_supervisor.adapters.identity import identity, only_here, own_address
from vllm_supervisor.adapters.inventory import hash_of
from vllm_supervisor.adapters.model_path import locate
from vllm_supervisor.config import Problem, Settings
from vllm_supervisor.core.check.finding import Finding, unknown, warn
from vllm_supervisor.core.cluster.compare import prints

if TYPE_CHECKING:
    from .instance import Instance

CREDENTIAL = "cluster-secret"
"""The credential of the unit that all nodes share."""

CREDSTORE = Path("/etc/credstore")
"""Where the units take it from, as NAME.cluster-secret; read there directly where no unit passes it on."""

SHORT = 120
"""Longer values are told as their beginning and a digest, so that a message stays small."""

ONLY_WITH_A_PORT = {"api-server-count"}
"""Arguments that vLLM refuses beside --headless (F8.1)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is looked up once, when the nodes begin to speak.

    Attributes:
        prints: What must be equal on all nodes, by name.
        environment: What the engine must know of this node.
        trouble: Why the others cannot reach this node; empty when they can, as far as is known.
    """

    prints: Mapping[str, str]
    environment: Mapping[str, str]
    trouble: str = ""


def as_node(settings: Settings, host: str, file: Path) -> Settings | Problem:
    """The settings of this node: the engine's arguments that follow, and nothing that needs HTTP where there is none.

    Args:
        settings: As they are written.
        host: Our host name.
        file: Where they are written.
    """
    cluster = settings.cluster
    if cluster.nnodes == 1:
        return settings
    rank = cluster.rank(host)
    if rank is None:
        return Problem(str(file), "cluster.nodes", f"does not name this machine, {host}; add it, or set node_rank")
    args = {
        **settings.engine.args,
        "nnodes": cluster.nnodes,
        "node-rank": rank,
        "master-addr": cluster.head,
        "master-port": cluster.master_port,
    }
    env = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), cluster.interface) if cluster.interface else {}
    engine = settings.engine.model_copy(update={"args": args, "env": {**env, **settings.engine.env}})
    changes: dict[str, Any] = {"engine": engine, "cluster": cluster.model_copy(update={"node_rank": rank})}
    if rank:
        args = {name: value for name, value in args.items() if name.replace("_", "-") not in ONLY_WITH_A_PORT}
        changes["engine"] = engine.model_copy(update={"args": args})
        # Only the head has a port, so only the head can be asked, drained and judged by its counters (F8.1).
        changes |= {
            "metrics": settings.metrics.model_copy(update={"engine": "off"}),
            "smoke": settings.smoke.model_copy(update={"on_start": "off"}),
            "stop": settings.stop.model_copy(update={"grace_s": 0.0, "drain_s": 0.0}),
            "liveness": settings.liveness.model_copy(update={"mode": "off"}),
        }
    return settings.model_copy(update=changes)


def secret_path(name: str, environ: Mapping[str, str]) -> Path:
    """The file with the secret that all nodes of the instance `name` share."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    return Path(directory) / CREDENTIAL if directory else CREDSTORE / f"{name}.{CREDENTIAL}"


def facts_of(instance: Instance, model: str, version: str, environment: Mapping[str, str]) -> Facts:
    """What the nodes compare, and what the engine must know of this one; reads files and asks for names.

    Args:
        instance: This node's.
        model: What the engine is to load: a directory, or a name of the hub.
        version: vLLM's; empty when it is not known.
        environment: The engine's.
    """
    engine, cluster = instance.settings.engine, instance.settings.cluster
    told = prints(
        {"vllm": version or "unknown", "vllm-supervisor": __version__},
        {**engine.args, "served-model-name": engine.served_model_name},
        identity(locate(model, environment), hash_of),
        environment,
    )
    address = "" if environment.get("VLLM_HOST_IP") else own_address(cluster.head, cluster.port)
    return Facts(
        {name: _shortened(value) for name, value in told.items()},
        {"VLLM_HOST_IP": address} if address else {},
        _unreachable(cluster.head) if cluster.place == 0 else "",
    )


def _unreachable(head: str) -> str:
    found = only_here(head)
    return f"cluster.head: {head} is {found} on the head itself, where no other node can reach it" if found else ""


def _shortened(value: str) -> str:
    if len(value) <= SHORT:
        return value
    return f"{value[: SHORT // 2]}... ({len(value)} characters, {hashlib.sha256(value.encode()).hexdigest()[:12]})"


def doubts(instance: Instance, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """What `check` says of this node's part in a cluster; a start with it is refused when it comes to speak."""
    cluster = instance.settings.cluster
    if cluster.nnodes == 1:
        return ()
    # asyncio comes with it, and every verb reads this module.
    from vllm_supervisor.adapters.peers import PeerError, read_secret

    found = []
    path = secret_path(instance.name, environ)
    try:
        read_secret(path)
    except PeerError as error:
        if os.geteuid() and not os.access(path, os.R_OK):
            found.append(unknown("cluster-secret", f"the shared secret {path}"))
        else:
            found.append(warn("cluster-secret", str(error), f"put the same secret into {path} on every node"))
    trouble = _unreachable(cluster.head) if cluster.place == 0 else ""
    if trouble:
        found.append(warn("cluster-head", trouble, "set it to the head's address in the network of the nodes"))
    return tuple(found)
