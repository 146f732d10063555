"""The table [cluster]: several machines that serve one model together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from .section import Port, Section

MOST_NODES = 64
OWN_ARGUMENTS = ("nnodes", "node-rank", "master-addr", "master-port", "headless")
"""Arguments that follow from this table."""


class Cluster(Section):
    """Several machines that serve one model together, by vLLM's own multi-node engine; the same on every node."""

    nnodes: int = Field(1, ge=1, le=MOST_NODES, description="Number of machines; 1: this one alone.")
    node_rank: int = Field(
        -1, ge=-1, description="Rank of this machine, 0 is the head; -1: the place of its host name in `nodes`."
    )
    nodes: list[str] = Field(default_factory=list, description="Host names by rank, so that the file is equal on all.")
    head: str = Field("", description="Address of the head, as the other nodes reach it.")
    interface: str = Field(
        "", description="Network interface between the nodes: sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
    )
    port: Port = Field(
        9479, description="Port of the head on which the supervisors speak; needs the credential cluster-secret."
    )
    master_port: Port = Field(29501, description="Port of the head on which the engines meet (--master-port).")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.nnodes == 1:
            return self
        if not self.head:
            raise ValueError("head must be set: the address of the node of rank 0")
        if self.nodes and (len(self.nodes) != self.nnodes or len(set(self.nodes)) != self.nnodes):
            raise ValueError(f"nodes must name {self.nnodes} different machines (nnodes)")
        if self.node_rank < 0 and not self.nodes:
            raise ValueError("set node_rank on every machine, or nodes to the host names by rank")
        if self.node_rank >= self.nnodes:
            raise ValueError(f"node_rank must be 0 to {self.nnodes - 1}: nnodes is {self.nnodes}")
        if self.port == self.master_port:
            raise ValueError("port and master_port must differ")
        return self

    @property
    def place(self) -> int:
        """The rank of this machine, once it is filled in; 0 without a cluster."""
        return self.node_rank if self.nnodes > 1 else 0

    def rank(self, host: str) -> int | None:
        """The rank of the machine `host`; None when it is none of the nodes."""
        if self.nnodes == 1:
            return 0
        if self.node_rank >= 0:
            return self.node_rank
        short = host.partition(".")[0]
        found = [rank for rank, name in enumerate(self.nodes) if name in {host, short}]
        return found[0] if found else None


def refuse_contradictions(cluster: Cluster, args: Mapping[str, object], *, held: bool) -> None:
    """Refuse what elsewhere in the configuration speaks against a cluster.

    Raises:
        ValueError: something does; the message says what to change.
    """
    if cluster.nnodes == 1:
        return
    if held:
        raise ValueError("weights.held works on one machine only: remove it, or set cluster.nnodes to 1")
    for key, value in args.items():
        name = key.replace("_", "-")
        if name in OWN_ARGUMENTS:
            raise ValueError(f"engine.args.{key} follows from [cluster]: remove it")
        if name == "distributed-executor-backend" and value == "ray":
            raise ValueError(
                "cluster.nnodes is for vLLM's own multi-node engine: remove distributed-executor-backend, or [cluster]"
            )
