"""The head's view of a cluster: it admits the nodes, and it decides the one fate of a common start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vllm_supervisor.core.causes import Cause

from .compare import difference
from .messages import SILENT_S, Report, Stand, Word, bearable_s, node_name

FORMER = 8
"""So many former starts of a node are remembered, so that a late message of one is known as such."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as it was last heard, at `at` monotonic seconds."""

    report: Report
    at: float


@dataclass(frozen=True, slots=True)
class Head:
    """What the head knows.

    Attributes:
        start: Identifies this start; a head that begins anew begins with a new one.
        seen: The other nodes by rank, as far as they were heard.
        former: Starts of each rank that are over.
        members: Who takes part, once everybody is there: rank to start.
        sealed_at: Since when.
        fate: Why the common start ends; the first reason stays.
        host: The name of the head's own machine.
    """

    nnodes: int
    start: str
    prints: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[int, Seen] = field(default_factory=dict)
    former: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    members: Mapping[int, str] = field(default_factory=dict)
    sealed_at: float = 0.0
    fate: Cause | None = None
    ready: bool = False
    count: int = 0
    host: str = ""

    @property
    def may_launch(self) -> bool:
        """Everybody is there, nothing differs, nobody has failed."""
        return bool(self.members) and self.fate is None

    @property
    def everybody_up(self) -> bool:
        """Every other node has loaded its part, as far as it was heard."""
        return self.may_launch and all(self.seen[rank].report.up for rank in self.members)

    def missing(self) -> tuple[int, ...]:
        """The ranks that are not there yet or still end an earlier start."""
        return tuple(rank for rank in range(1, self.nnodes) if not self._admissible(rank))

    def _admissible(self, rank: int) -> bool:
        seen = self.seen.get(rank)
        return seen is not None and seen.report.fault is None and seen.report.epoch in {"", self.start}


def heard(head: Head, report: Report, now: float) -> Head:
    """The head after a node's report."""
    rank = report.rank
    if not 0 < rank < head.nnodes or report.start in head.former.get(rank, ()):
        return head
    last = head.seen.get(rank)
    if last is not None and last.report.start == report.start and report.count <= last.report.count:
        return head
    former = head.former
    if last is not None and last.report.start != report.start:
        if _twice(last, report, now):
            hosts = f"{last.report.host} and {report.host}"
            head = failed(head, _same_rank(f"two machines say that they are {node_name(rank, head.nnodes)}: {hosts}"))
        former = {**former, rank: (*former.get(rank, ()), last.report.start)[-FORMER:]}
    head = replace(head, seen={**head.seen, rank: Seen(report, now)}, former=former)
    return _judge(head, now)


def _twice(last: Seen, report: Report, now: float) -> bool:
    """Whether two machines live that have one rank, and not one that was started again."""
    hosts = {last.report.host, report.host} - {""}
    return len(hosts) == 2 and now - last.at <= SILENT_S and last.report.fault is None


def _same_rank(summary: str) -> Cause:
    advice = "Give every machine a cluster.node_rank of its own, or a line of its own in cluster.nodes."
    return Cause("configuration-invalid", summary=summary, advice=advice)


def tick(head: Head, now: float) -> Head:
    """The head after time has passed."""
    if not head.members:
        # Who fell silent before the start is not waited with, but waited for.
        present = {rank: seen for rank, seen in head.seen.items() if now - seen.at <= bearable_s(seen.report)}
        head = head if len(present) == len(head.seen) else replace(head, seen=present)
    return _judge(head, now)


def failed(head: Head, cause: Cause) -> Head:
    """The head's own start has failed or is being stopped: so is everybody's."""
    return head if head.fate is not None else replace(head, fate=cause, ready=False)


def became_ready(head: Head) -> Head:
    """The head's own gates are open; that is everybody's readiness, if everybody is still up."""
    return replace(head, ready=True) if head.everybody_up else head


def stands(head: Head, now: float, phase: str = "") -> dict[int, Stand]:
    """Where every node stands, by rank; `phase` is the head's own. A node that is not heard has none."""
    found = {0: Stand(phase, head.host)}
    for rank in range(1, head.nnodes):
        seen = head.seen.get(rank)
        if seen is None:
            found[rank] = Stand()
            continue
        quiet = now - seen.at
        heard_now = quiet <= bearable_s(seen.report)
        found[rank] = Stand(seen.report.phase if heard_now else "", seen.report.host, round(quiet, 1))
    return found


def word(head: Head, now: float = 0.0, phase: str = "", *, away: bool = False) -> tuple[Head, Word]:
    """What the head says now."""
    head = replace(head, count=head.count + 1)
    ready = head.ready and head.fate is None
    nodes = stands(head, now, phase)
    return head, Word(head.start, head.count, head.members, nodes, ready, head.fate, away)


def _judge(head: Head, now: float) -> Head:
    if head.fate is not None:
        return head
    if not head.members:
        if head.missing():
            return head
        members = {rank: seen.report.start for rank, seen in head.seen.items()}
        others = {rank: seen.report.prints for rank, seen in head.seen.items()}
        fate = difference(head.prints, others, head.nnodes)
        return replace(head, members=members, sealed_at=now, fate=fate)
    causes = (_end_of(head, rank, now) for rank in sorted(head.members))
    cause = next((found for found in causes if found is not None), None)
    return head if cause is None else failed(head, cause)


def _end_of(head: Head, rank: int, now: float) -> Cause | None:
    """Why the common start ends because of one node."""
    seen, name = head.seen[rank], node_name(rank, head.nnodes)
    report = seen.report
    if report.start != head.members[rank]:
        return lost(f"{name} has begun anew")
    if report.fault is not None:
        return report.fault
    if now - seen.at > bearable_s(report):
        return lost(f"{name} has not been heard for {now - seen.at:.0f} s")
    if not report.epoch and now - head.sealed_at > SILENT_S:
        return lost(f"{name} does not hear the head")
    return None


def lost(summary: str) -> Cause:
    """The cause of a node that is gone, or cannot be told from one."""
    advice = "All nodes end this start and begin anew together; look at that machine and at the network between them."
    return Cause("node-lost", summary=summary, advice=advice)
