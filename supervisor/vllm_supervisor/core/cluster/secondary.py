"""A secondary node's view of a cluster: it follows the head, and ends without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vllm_supervisor.core.causes import Cause

from .head import FORMER, lost
from .messages import SILENT_S, Report, Stand, Word, bearable_s

FATE_S = 3.0
"""So long a node that failed waits for the head's word, so that all give the same cause; seconds."""


@dataclass(frozen=True, slots=True)
class Secondary:
    """What a node other than the head knows.

    Attributes:
        epoch: The head's start that it takes part in; empty until it was admitted.
        head: The head's start that was heard last.
        heard_at: When the head was heard last; None when never.
        bearable_s: For how many seconds after that the head may be silent.
        nodes: Where the head says that every node stands, by rank.
        fault: Why this node wants to end; `fault_at` says since when.
        fate: Why this node ends its start: the head's word, or its own when there is none.
        host: The name of its machine.
    """

    rank: int
    nnodes: int
    start: str
    prints: Mapping[str, str] = field(default_factory=dict)
    epoch: str = ""
    head: str = ""
    former: tuple[str, ...] = ()
    heard_at: float | None = None
    heard_count: int = 0
    bearable_s: float = SILENT_S
    nodes: Mapping[int, Stand] = field(default_factory=dict)
    head_ready: bool = False
    fault: Cause | None = None
    fault_at: float = 0.0
    fate: Cause | None = None
    count: int = 0
    host: str = ""

    @property
    def may_launch(self) -> bool:
        """The head has admitted this start, and nobody has failed."""
        return bool(self.epoch) and self.fate is None and self.fault is None

    @property
    def ready(self) -> bool:
        """A secondary is ready when the head is, and no longer."""
        return self.may_launch and self.head_ready


def heard(node: Secondary, word: Word, now: float) -> Secondary:
    """The node after a word of the head."""
    if word.start in node.former or (word.start == node.head and word.count <= node.heard_count):
        return node
    if node.head and word.start != node.head:
        node = replace(node, former=(*node.former, node.head)[-FORMER:])
    node = replace(
        node,
        head=word.start,
        heard_at=now,
        heard_count=word.count,
        bearable_s=bearable_s(word),
        nodes=word.nodes,
    )
    if not node.epoch:
        if word.members.get(node.rank) != node.start:
            return node
        node = replace(node, epoch=word.start)
    if word.start != node.epoch:
        return _ended(node, lost("the head has begun anew"))
    node = replace(node, head_ready=word.ready)
    return node if word.fate is None else _ended(node, word.fate)


def tick(node: Secondary, now: float) -> Secondary:
    """The node after time has passed."""
    if node.fault is not None and now - node.fault_at >= FATE_S:
        return _ended(node, node.fault)
    if node.epoch and node.heard_at is not None and now - node.heard_at > node.bearable_s:
        return _ended(node, lost(f"the head has not been heard for {now - node.heard_at:.0f} s"))
    return node


def failed(node: Secondary, cause: Cause, now: float) -> Secondary:
    """This node failed or is being stopped; before it was admitted that is nobody else's business."""
    if node.fate is not None or node.fault is not None:
        return node
    node = replace(node, fault=cause, fault_at=now, head_ready=False)
    return node if node.epoch else _ended(node, cause)


def report(node: Secondary, phase: str = "", *, up: bool = False, away: bool = False) -> tuple[Secondary, Report]:
    """What the node says now; the fate is repeated, so that the head learns of an end that it missed."""
    node = replace(node, count=node.count + 1)
    why = node.fault or node.fate
    return node, Report(
        node.rank, node.start, node.count, node.epoch, phase, up, why, node.prints, host=node.host, away=away
    )


def _ended(node: Secondary, cause: Cause) -> Secondary:
    return node if node.fate is not None else replace(node, fate=cause, head_ready=False)
