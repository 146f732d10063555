"""Whether a ready engine lives: judged by progress, never by /health.

Measured (F2.1, F3.3): with a stopped worker or engine core /health stays 200, and a request that
came after the hang never shows in the gauges. So proof of life is something that moves: token
counters, iterations, KV usage, running or waiting requests, power well above idle, an answered
canary. A full queue or a prefill of minutes moves something; a hang moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .sightings import Activity, CanaryDone, Counted

if TYPE_CHECKING:
    from .policy import Policy

QUIET_S = 10.0
"""With work to do and nothing moving for so long, a canary is sent."""

CONNECTION_CANARY_S = 30.0
"""An open connection alone asks for a canary no more often than this."""

BUSY_POWER = 0.3
"""Share of the power limit that counts as well above idle. An H200 (700 W) idles at 100-120 W, a
dead-locked worker drew 122 W, matrix work 690 W; cards of 600 W dead-locked at about 140 W."""

BUSY_CPU = 0.2
"""Without a GPU: share of a core that the least busy worker must use, or wait for, to count as computing.

Measured (0.32, two workers): 0.6 used in a prefill on a busy host, 0.00 idle, 0 for a stopped worker
while the other one spins at 0.9. A host with more to do gives a worker less than this, as in the tour
of faults, where two engines load beside one that serves: the time in which it wants a processor counts."""


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of a ready engine's progress. Times are monotonic seconds.

    Attributes:
        proof_at: When something last proved life.
        proof: What it was, in words.
        work: There is, or may be, something to do.
        canary_sent: When the canary that is under way was sent; None when none is.
        canary_last: When the last canary was sent or answered.
        canary_seconds: How long the last answered canary took.
        canary_failures: Canaries that failed or were not answered.
        failing_since: When the first canary was sent that has failed since the last proof of life.
        canary_detail: Why the last canary failed.
        hung: The engine has been called hung (`liveness.mode = "report"` goes on).
        unmoved_since: When the first request was sent that was meant for this engine and that moved nothing of
            it, although it was answered; told only of one of several engines.
        absent: The server says that it has no such engine (any more); likewise.
    """

    proof_at: float
    proof: str = "ready"
    work: bool = False
    only_connections: bool = False
    counted: Counted | None = None
    counted_at: float | None = None
    activity: Activity | None = None
    activity_at: float | None = None
    canary_sent: float | None = None
    canary_last: float = 0.0
    canary_seconds: float | None = None
    canary_failures: int = 0
    failing_since: float | None = None
    canary_detail: str = ""
    hung: bool = False
    unmoved_since: float | None = None
    absent: bool = False

    def proved(self, now: float, what: str) -> Life:
        """The same engine, seen alive at `now`."""
        return replace(self, proof_at=now, proof=what, failing_since=None, hung=False, unmoved_since=None, absent=False)

    @property
    def busy(self) -> bool:
        """Whether its own figures show a request; a connection alone may be anybody's."""
        return self.work and not self.only_connections


_MOVING = {
    "generation_tokens": "tokens are generated",
    "prompt_tokens": "prompts are read",
    "iterations": "the engine steps",
    "kv_usage": "the KV cache changes",
    "running": "running requests change",
    "waiting": "waiting requests change",
}


def on_counted(life: Life, event: Counted, now: float) -> Life:
    """Take a reading of the engine's counters in."""
    seen = life.counted
    readable = event.generation_tokens is not None or event.running is not None
    if not readable:
        # Nothing is known of requests; only an engine without any connection is surely idle.
        idle = life.activity is not None and life.activity.connections == 0
        return replace(life, work=not idle, only_connections=False)
    moved = ""
    if seen is not None:
        for name, what in _MOVING.items():
            if getattr(event, name) != getattr(seen, name):
                moved = what
                break
    work = bool((event.running or 0) > 0 or (event.waiting or 0) > 0)
    connected = life.activity is not None and bool(life.activity.connections)
    life = replace(
        life,
        counted=event,
        counted_at=now,
        work=work or connected,
        only_connections=connected and not work,
    )
    return life.proved(now, moved) if moved else life


def on_activity(life: Life, event: Activity, policy: Policy, now: float) -> Life:
    """Take a sample of the engine's processes and GPUs in."""
    before, before_at = life.activity, life.activity_at
    life = replace(life, activity=event, activity_at=now)
    if event.connections and not life.work:
        life = replace(life, work=True, only_connections=True)
    elif event.connections == 0 and life.only_connections:
        life = replace(life, work=False, only_connections=False)
    if policy.accelerated:
        if event.gpu_power_watts is None or not event.gpu_power_limit_watts:
            return life
        if event.gpu_power_watts >= BUSY_POWER * event.gpu_power_limit_watts:
            return life.proved(now, f"every GPU draws {event.gpu_power_watts:.0f} W or more")
        return life
    if before is None or before_at is None or before.worker_cpu_s is None or event.worker_cpu_s is None:
        return life
    elapsed = now - before_at
    if elapsed > 0 and event.worker_cpu_s - before.worker_cpu_s >= BUSY_CPU * elapsed:
        return life.proved(now, "every worker computes")
    return life


def on_sent(life: Life, now: float) -> Life:
    """A canary is on its way."""
    return replace(life, canary_sent=now, canary_last=now)


def on_canary(life: Life, event: CanaryDone, now: float) -> Life:
    """Take the end of a canary in."""
    sent = life.canary_sent if life.canary_sent is not None else now
    life = replace(life, canary_sent=None, canary_last=now)
    if event.answered:
        return replace(life.proved(now, "a canary was answered"), canary_seconds=event.seconds)
    failing = life.failing_since if life.failing_since is not None else max(sent, life.proof_at)
    return replace(life, canary_failures=life.canary_failures + 1, failing_since=failing, canary_detail=event.detail)


def on_answer_of_some_engine(life: Life, event: CanaryDone, now: float) -> Life:
    """Take the end of a canary in that was meant for this one of several engines.

    Whether it was this engine that answered, its own counters say: they move with every token. Without counters the
    answer has to do.
    """
    sent = life.canary_sent if life.canary_sent is not None else now
    blind = life.counted_at is None or now - life.counted_at >= QUIET_S
    if not event.answered or (blind and event.known):
        return replace(on_canary(life, event, now), absent=not event.known)
    life = replace(life, canary_sent=None, canary_last=now, canary_seconds=event.seconds, failing_since=None)
    life = replace(life, absent=not event.known)
    if not event.known:
        return replace(life, unmoved_since=None)
    if life.proof_at >= sent or life.unmoved_since is not None:
        return life
    return replace(life, unmoved_since=sent)


def wants_canary(life: Life, policy: Policy, now: float) -> bool:
    """Whether a one-token request should be sent now."""
    if policy.liveness == "off" or life.canary_sent is not None:
        return False
    since = now - life.canary_last
    if life.failing_since is not None:
        return since >= QUIET_S / 2
    if life.work and not life.absent:
        pause = CONNECTION_CANARY_S if life.only_connections else QUIET_S / 2
        return now - life.proof_at >= QUIET_S and since >= pause
    return since >= policy.canary_every_s


def hang(life: Life, policy: Policy, now: float) -> str | None:
    """The sentence that names a hang, or None.

    Hung means: no proof of life for `hang_after_s`, and for nearly as long a canary is awaited, or
    every one failed at once (an engine whose core is dead answers HTTP 500). An idle engine has
    nothing to prove before it is asked, so its canary gets the whole time. Of several engines one that
    has requests is also hung when every canary that was meant for it was answered by another one.
    """
    if policy.liveness == "off" or life.hung or life.absent:
        return None
    quiet = now - life.proof_at
    unmoved = life.unmoved_since if life.busy else None
    tries = [at for at in (life.canary_sent, life.failing_since, unmoved) if at is not None]
    if quiet < policy.hang_after_s or not tries:
        return None
    patience = policy.hang_after_s - (QUIET_S + 2.0 if life.work else 0.0)
    if now - min(tries) < max(patience, QUIET_S / 2):
        return None
    return _sentence(life, quiet)


def _sentence(life: Life, quiet: float) -> str:
    asked = "a one-token request is not answered"
    if life.unmoved_since is not None:
        asked = "one-token requests are answered, but none of them by it"
    if life.failing_since is not None:
        asked = f"one-token requests fail: {life.canary_detail or 'no answer'}"
    parts = [f"nothing has moved for {quiet:.0f} s and {asked}"]
    activity = life.activity
    if activity is not None and activity.gpu_utilization is not None and activity.gpu_power_watts is not None:
        parts.append(f"GPU utilisation {activity.gpu_utilization:.0%} at {activity.gpu_power_watts:.0f} W")
    if life.counted is not None and life.counted.running:
        parts.append(f"{life.counted.running:.0f} requests running")
    return ", ".join(parts)
