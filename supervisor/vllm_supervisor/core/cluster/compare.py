"""What must be equal on all nodes before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.redact import is_secret

from .messages import node_name

OWN = frozenset({"node-rank", "headless", "host", "port", "uds", "api-server-count"})
"""Arguments that differ between the head and the others by their nature (F8.1)."""

SHOWN = 80
"""Characters of a value that a sentence shows."""

ABSENT = "not set"


def prints(
    versions: Mapping[str, str],
    arguments: Mapping[str, object],
    checkpoint: Mapping[str, str],
    environment: Mapping[str, str],
) -> dict[str, str]:
    """What a node tells of itself to be compared, by a name that people understand.

    Args:
        versions: Of vLLM and whatever else must agree.
        arguments: The engine's, by name without dashes; secrets among them are never told.
        checkpoint: What identifies the weights: names and digests.
        environment: The engine's; only what concerns the connection of the nodes is compared.
    """
    found = {f"version of {name}": value for name, value in versions.items()}
    for name, value in arguments.items():
        key = name.replace("_", "-")
        if key not in OWN and value is not False and not is_secret(key):
            found[f"--{key}"] = _text(value)
    found |= {f"checkpoint: {name}": value for name, value in checkpoint.items()}
    found |= {name: value for name, value in environment.items() if _concerns_all(name)}
    return found


def _text(value: object) -> str:
    if value is True:
        return "given"
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _concerns_all(name: str) -> bool:
    # The interface and the adapter may have another name on another node.
    own = name.endswith("_SOCKET_IFNAME") or name in {"NCCL_IB_HCA", "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE"}
    return name.startswith("NCCL_") and not own and not is_secret(name)


def difference(head: Mapping[str, str], nodes: Mapping[int, Mapping[str, str]], nnodes: int) -> Cause | None:
    """The cause that names what differs and where; None when all nodes agree with the head."""
    found: list[str] = []
    for rank, other in sorted(nodes.items()):
        names = sorted(name for name in {*head, *other} if head.get(name) != other.get(name))
        found += [
            f"{name} is {_shown(other.get(name))} on {node_name(rank, nnodes)} and {_shown(head.get(name))} on the head"
            for name in names
        ]
    if not found:
        return None
    return Cause(
        "node-differs",
        summary=_sentence(found),
        advice="Make the nodes equal: the same configuration, engine and checkpoint on every node; then start all.",
        phase="preflight",
    )


def _shown(value: str | None) -> str:
    if value is None:
        return ABSENT
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}..."


def _sentence(found: Sequence[str], most: int = 3) -> str:
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + more
