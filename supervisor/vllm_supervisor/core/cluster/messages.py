"""What the supervisors of a cluster say to each other.

Every message carries the whole of what its sender has to say, so that a lost one is mended by the
next and an old one is known by its number. Nothing here is secret, and nothing of it is a command:
what follows from a message, its reader decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_supervisor.core.causes import Cause

BEAT_S = 1.0
"""Every node says where it stands so often, and at once when something has changed; seconds."""

SILENT_S = 6.0
"""A node that has not been heard for so long is lost; with the beat and the notice to the others
all nodes know within ten seconds. Seconds."""

AWAY_S = 90.0
"""So long a supervisor may be silent that has said before that it replaces its own image; seconds.
On a machine that its engine saturates that took 20 s and more."""


@dataclass(frozen=True, slots=True)
class Report:
    """Where a node stands, said to the head.

    Attributes:
        rank: The node's rank, from 1.
        start: Identifies this start of the node's supervisor; a restart gives another one.
        count: Rises with every report of one start.
        epoch: The head's start that this node takes part in; empty until it was admitted.
        up: The node's part of the engine is loaded and lives.
        fault: Why this node wants the common start to end.
        prints: What must be equal on all nodes, by name.
        host: The machine's name.
        away: Its supervisor replaces its own image now, and may be silent for `AWAY_S`.
    """

    rank: int
    start: str
    count: int
    epoch: str = ""
    phase: str = ""
    up: bool = False
    fault: Cause | None = None
    prints: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    away: bool = False


@dataclass(frozen=True, slots=True)
class Stand:
    """What everybody may know of one node.

    Attributes:
        phase: Its phase; empty while it is missing.
        host: The machine's name; empty as long as it was never heard.
        quiet_s: Seconds since it was heard.
    """

    phase: str = ""
    host: str = ""
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Word:
    """Where the cluster stands, said by the head to everybody.

    Attributes:
        start: Identifies this start of the head, and so the common start.
        count: Rises with every word of one start.
        members: Which start of which rank takes part; empty until everybody is there.
        nodes: Where every node stands, by rank; for people.
        ready: The model answers.
        fate: Why the common start ends, for everybody.
        away: The head replaces its own image now, and may be silent for `AWAY_S`.
    """

    start: str
    count: int
    members: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[int, Stand] = field(default_factory=dict)
    ready: bool = False
    fate: Cause | None = None
    away: bool = False


def bearable_s(message: Report | Word) -> float:
    """For how many seconds after this message its sender may be silent."""
    return AWAY_S if message.away else SILENT_S


def node_name(rank: int, nnodes: int) -> str:
    """How people count: node 1 of 2 is the head."""
    return f"node {rank + 1} of {nnodes}"
