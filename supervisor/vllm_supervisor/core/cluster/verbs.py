"""What an operator's verb may do on one node of a cluster, and what to do instead."""

from __future__ import annotations


def not_here(verb: str, *, nnodes: int, rank: int, head: str, stops: bool = True) -> str:
    """Why a verb is refused on this node, with the remedy; empty where it may be used.

    Args:
        verb: `restart`, `snapshot`, `upgrade` or `smoke`; nothing is refused of others.
        nnodes: Number of machines; 1 without a cluster.
        rank: Of this machine.
        head: The head's host name or address.
        stops: Whether this call stops the instance.
    """
    if nnodes == 1:
        return ""
    here = f"this is node {rank + 1} of {nnodes}"
    match verb:
        case "restart" | "smoke" if rank:
            return f"{here}, and only the head answers: run it on {head}"
        case "snapshot" if stops:
            return (
                f"{here}, and the others end with it: stop the instance on all nodes, make the snapshots, and start it "
                "on all; or use --no-stop"
            )
        case "upgrade":
            return (
                f"{here}, and all must run one version: stop the instance on all nodes, turn the link to the new "
                "environment on each, and start it on all"
            )
        case _:
            return ""
