"""This node's part in a cluster, whichever rank it has: what its own start means to the others, and theirs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.events import Peers
from vllm_supervisor.core.phases import LOADING, SETTLED, Phase
from vllm_supervisor.core.state import State

from . import head as heads
from . import secondary as others
from .messages import Report, Stand, Word, node_name

Mind = heads.Head | others.Secondary
"""What a node knows of its cluster."""


@dataclass(frozen=True, slots=True)
class Own:
    """Where this node's own start stands, as far as others are concerned.

    Attributes:
        up: Its part of the engine runs.
        early: Its start still waits or loads, and lives on news.
        cause: Why it ends; None while it does not.
    """

    phase: str = ""
    up: bool = False
    early: bool = True
    ready: bool = False
    cause: Cause | None = None


def own(state: State) -> Own:
    """What the others must know of this start."""
    serves = state.phase in LOADING | {Phase.READY, Phase.DRAINING}
    return Own(
        phase=str(state.phase),
        up=serves and state.engine_alive and state.dying is None,
        early=state.phase in LOADING | {Phase.WAITING},
        ready=state.phase is Phase.READY,
        cause=_why_it_ends(state),
    )


def _why_it_ends(state: State) -> Cause | None:
    rank = state.policy.node_rank
    name = node_name(rank, state.policy.nnodes)
    if state.fault is not None:
        return replace(state.fault, summary=f"{name}: {state.fault.summary or state.fault.evidence.strip()}")
    # The head's requests may finish first; what another node takes part in ends without it.
    if state.stop_by and (rank or state.phase in SETTLED | {Phase.STOPPING}):
        advice = "The others begin anew and wait for it; start it there."
        return Cause("node-stopped", summary=f"{name} was stopped", advice=advice)
    return None


def begun(nnodes: int, rank: int, start: str, prints: Mapping[str, str], host: str) -> Mind:
    """What a node knows at first."""
    if rank:
        return others.Secondary(rank, nnodes, start, prints, host=host)
    return heads.Head(nnodes, start, prints, host=host)


def resumed(mind: Mind, now: float) -> Mind:
    """After this supervisor replaced its own image: the silence was ours, not the others'."""
    if isinstance(mind, heads.Head):
        return replace(mind, seen={rank: replace(seen, at=now) for rank, seen in mind.seen.items()})
    return replace(mind, heard_at=now if mind.heard_at is not None else None)


def followed(mind: Mind, state: Own, now: float) -> Mind:
    """After this node's own start went on."""
    if isinstance(mind, heads.Head):
        if state.cause is not None:
            return heads.failed(mind, state.cause)
        return heads.became_ready(mind) if state.ready and not mind.ready else mind
    return others.failed(mind, state.cause, now) if state.cause is not None else mind


def heard(mind: Mind, message: Report | Word, now: float) -> Mind:
    """After a message; what its sender has no business to say changes nothing."""
    if isinstance(mind, heads.Head):
        return heads.heard(mind, message, now) if isinstance(message, Report) else mind
    return others.heard(mind, message, now) if isinstance(message, Word) else mind


def ticked(mind: Mind, now: float) -> Mind:
    """After time has passed."""
    return heads.tick(mind, now) if isinstance(mind, heads.Head) else others.tick(mind, now)


def said(mind: Mind, state: Own, now: float, *, away: bool = False) -> tuple[Mind, Report | Word]:
    """What this node says now."""
    if isinstance(mind, heads.Head):
        return heads.word(mind, now, state.phase, away=away)
    return others.report(mind, state.phase, up=state.up, away=away)


def urgent(mind: Mind, state: Own) -> tuple[object, ...]:
    """Whatever changes in this is said at once, and not with the next beat."""
    if isinstance(mind, heads.Head):
        return state.phase, state.up, mind.fate, mind.ready, bool(mind.members)
    return state.phase, state.up, mind.fate, mind.fault, mind.epoch, mind.head_ready


def news(mind: Mind, trouble: str = "") -> Peers:
    """What the node's own start must know; `trouble` says why the head cannot be spoken with."""
    if isinstance(mind, heads.Head):
        missing = ", ".join(node_name(rank, mind.nnodes) for rank in mind.missing())
        return Peers(missing, mind.may_launch, mind.everybody_up, mind.fate)
    missing = "the other nodes"
    if trouble or mind.heard_at is None:
        missing = f"{node_name(0, mind.nnodes)}, the head" + (f" ({trouble})" if trouble else "")
    else:
        absent = [rank for rank, stand in mind.nodes.items() if not stand.phase]
        if absent:
            missing = ", ".join(node_name(rank, mind.nnodes) for rank in sorted(absent))
    return Peers(missing, bool(mind.epoch), mind.ready, mind.fate)


def table(mind: Mind, state: Own, now: float) -> list[dict[str, Any]]:
    """Every node as plain JSON, by rank: its phase, its machine, and when it was heard."""
    if isinstance(mind, heads.Head):
        rank, nodes = 0, heads.stands(mind, now, state.phase)
    else:
        silence = now - mind.heard_at if mind.heard_at is not None else None
        lost = silence is None or silence > mind.bearable_s
        nodes = {one: Stand() for one in range(mind.nnodes)} if lost else dict(mind.nodes)
        nodes[0] = replace(nodes.get(0, Stand()), quiet_s=round(silence or 0.0, 1))
        rank, nodes = mind.rank, {**nodes, mind.rank: Stand(state.phase, mind.host)}
    return [
        {
            "rank": one,
            "host": stand.host,
            "phase": stand.phase or "missing",
            "here": one == rank,
            "quiet_seconds": stand.quiet_s,
        }
        for one, stand in sorted(nodes.items())
    ]


def figures(rows: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """What /metrics shows of a node whose `table` these rows are: its own rank, and on the head every node."""
    found: dict[str, Any] = {"cluster_rank": rank}
    if rank == 0:
        found["cluster_node_up"] = {str(row["rank"]): int(row["phase"] != "missing") for row in rows}
        found["cluster_node_phase"] = {
            (str(row["rank"]), row["phase"]): 1.0 for row in rows if row["phase"] != "missing"
        }
    return found
