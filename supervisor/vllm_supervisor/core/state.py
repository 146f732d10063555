"""The whole state of a start, as one frozen value that only `step` replaces.

Times are monotonic seconds, as the daemon's clock gives them to `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .causes import Cause
from .events import Peers, SmokeDone
from .facts import FigureName, Progress
from .liveness import Life
from .phases import Phase
from .policy import Policy
from .sightings import Activity


class StopStep(StrEnum):
    """How far an ending has come; each step has a deadline of its own."""

    NONE = "none"
    GRACE = "grace"
    DRAIN = "drain"
    TERM = "term"
    TERM_AGAIN = "term-again"
    INCIDENT = "incident"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of readiness and the probing for them.

    Attributes:
        line_at: Gate A: when the readiness line was read.
        answered_at: When /health first said 200.
        verified_at: Gate B: when the full probe passed.
        smoke_passed: The third gate, when `smoke.on_start = "require"`.
        probing: A probe is under way.
        probe_due: When the next probe is sent.
        detail: What the last probe said.
        strangers: Probes in a row that found the port held by a process that is not ours.
        seconds: How long the last probe that came through took.
    """

    line_at: float | None = None
    answered_at: float | None = None
    verified_at: float | None = None
    smoke_passed: bool = False
    smoke_asked: bool = False
    probing: bool = False
    probe_due: float = 0.0
    detail: str = ""
    strangers: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Proof of progress during a start, and what systemd was told about it.

    Attributes:
        at: When the last piece was seen; `what` says what it was.
        gaps: The longest time between two pieces in each phase, in seconds.
        worker_cpu_s: CPU time of the least busy worker at the last piece, as in `Activity`; what it used since is no
            progress, but worth telling of a stall.
        extended_at: When EXTEND_TIMEOUT_USEC was last sent.
        timeout_at: When systemd's start timeout would fire.
    """

    at: float
    what: str = ""
    gaps: Mapping[Phase, float] = field(default_factory=dict)
    worker_cpu_s: float | None = None
    extended_at: float = float("-inf")
    timeout_at: float = float("inf")


@dataclass(frozen=True, slots=True)
class State:
    """Where a start stands.

    Attributes:
        since: When the phase was entered.
        timeline: Every phase entered so far and when; phases can recur.
        deadline: When the phase, or its present step, is over; None when it has no end of its own.
        shards: The last bar of the weights; it stays when the phase is over.
        life: How the engine fares; of several engines together, by the sums of their figures.
        engines: How each of several engines fares, by its label; empty where there is one.
        suspect: The classifier's best cause so far; a verdict only once something fails.
        fault: Why this start is being ended; None for an ending that was asked for.
        stop_by: The signal that asked for the end; empty when nobody did.
        ahead: Whom this start lets finish loading, in a few words; empty when it waits for nobody.
        peers: What was last heard of the other nodes.
        gathering: The start waits for them.
        dying: A process of the engine that is gone, while its last words are awaited.
    """

    policy: Policy
    started: float
    phase: Phase = Phase.PREFLIGHT
    since: float = 0.0
    timeline: tuple[tuple[Phase, float], ...] = ()
    deadline: float | None = None
    stop_step: StopStep = StopStep.NONE
    engine_pid: int | None = None
    engine_alive: bool = False
    exit_status: int | None = None
    gates: Gates = field(default_factory=Gates)
    evidence: Evidence = field(default_factory=lambda: Evidence(at=0.0))
    activity: Activity = field(default_factory=Activity)
    figures: Mapping[FigureName, float | str] = field(default_factory=dict)
    progress: Progress | None = None
    progress_since: float = 0.0
    progress_from: float = 0.0
    shards: Progress | None = None
    life: Life | None = None
    engines: Mapping[str, Life] = field(default_factory=dict)
    ready_at: float | None = None
    smoke_test: SmokeDone | None = None
    suspect: Cause | None = None
    fault: Cause | None = None
    stop_by: str = ""
    dying: Cause | None = None
    watchdog_at: float = float("-inf")
    warnings: tuple[str, ...] = ()
    ahead: str = ""
    peers: Peers = field(default_factory=Peers)
    gathering: bool = False
    survivors: tuple[str, ...] = ()

    def enter(self, phase: Phase, now: float, deadline: float | None = None) -> State:
        """The state after entering `phase`; entering the present phase only renews the deadline."""
        if phase is self.phase and self.timeline:
            return replace(self, deadline=deadline)
        return replace(
            self,
            phase=phase,
            since=now,
            deadline=deadline,
            timeline=(*self.timeline, (phase, now)),
            progress=None,
        )

    def saw(self, now: float, what: str) -> State:
        """The state after a piece of evidence."""
        evidence = self.evidence
        gap = now - evidence.at
        gaps = evidence.gaps
        if gap > gaps.get(self.phase, 0.0):
            gaps = {**gaps, self.phase: gap}
        used = self.activity.worker_cpu_s
        return replace(self, evidence=replace(evidence, at=now, what=what, gaps=gaps, worker_cpu_s=used))

    def phase_seconds(self, now: float) -> dict[Phase, float]:
        """Seconds spent in each phase so far; a phase that recurred counts once, summed."""
        total: dict[Phase, float] = {}
        for index, (phase, at) in enumerate(self.timeline):
            end = self.timeline[index + 1][1] if index + 1 < len(self.timeline) else now
            total[phase] = total.get(phase, 0.0) + (end - at)
        return total


def initial(policy: Policy, now: float) -> State:
    """The state before the first event."""
    return State(
        policy=policy,
        started=now,
        since=now,
        evidence=Evidence(at=now, timeout_at=now + policy.systemd_start_timeout_s),
    )
