"""Several engines behind one address (data parallel): each is judged by itself, never by the sum.

What can be told of one engine: its own counters, its own workers and GPUs, and the answer to a
request that is sent to it by its rank (vLLM's header). A connection may be anybody's. Where there is
one engine, nothing here is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import liveness
from .liveness import QUIET_S, Life
from .words import duration

if TYPE_CHECKING:
    from .policy import Policy
    from .sightings import Activity, CanaryDone, Counted

Lives = Mapping[str, Life]
"""What is known of each engine's progress, by the label that the engine's page gives it."""

SHOWN = 4
"""Engines that a sentence names one by one."""


def on_counted(lives: Lives, event: Counted, now: float) -> Lives:
    """Take a reading of the page in: engines come and go with it; one that cannot be read changes none."""
    if event.engines:
        return {
            label: liveness.on_counted(lives.get(label) or Life(proof_at=now, canary_last=now), one, now)
            for label, one in event.engines.items()
        }
    if event.generation_tokens is not None or event.running is not None:
        return {}
    return {label: liveness.on_counted(life, event, now) for label, life in lives.items()}


def on_activity(lives: Lives, event: Activity, policy: Policy, now: float) -> Lives:
    """Take a sample of the processes in; what cannot be told of one engine is the same for all."""
    return {
        label: liveness.on_activity(
            life, replace(event.engines.get(label, event), connections=event.connections), policy, now
        )
        for label, life in lives.items()
    }


def on_canary(lives: Lives, event: CanaryDone, now: float) -> Lives:
    """Take the end of a canary in; one that was meant for an engine that has gone changes none."""
    life = lives.get(event.engine)
    if life is None:
        return lives
    return {**lives, event.engine: liveness.on_answer_of_some_engine(life, event, now)}


def to_ask(lives: Lives, policy: Policy, now: float) -> list[str]:
    """The engines that a one-token request should be sent to now."""
    return [label for label, life in _present(lives).items() if liveness.wants_canary(life, policy, now)]


def asked(lives: Lives, labels: Iterable[str], now: float) -> Lives:
    """The same engines, with a request on its way to each of these."""
    return {**lives, **{label: liveness.on_sent(lives[label], now) for label in labels}}


def rank(lives: Lives, label: str) -> int | None:
    """The rank by which the server knows an engine: among those that it serves, counted from 0.

    The label is the rank among the engines of all machines, of which this server may have the later ones.
    """
    numbers = [int(each) for each in lives if each.isdecimal()]
    return int(label) - min(numbers) if label.isdecimal() else None


def hangs(lives: Lives, policy: Policy, now: float) -> dict[str, str]:
    """The sentence on each engine that is found to hang now, by its label."""
    found = {label: liveness.hang(life, policy, now) for label, life in _present(lives).items()}
    return {label: sentence for label, sentence in found.items() if sentence is not None}


def _present(lives: Lives) -> Lives:
    """The same engines; where the server has none of them by its rank, it knows no ranks, and that says nothing."""
    if all(life.absent for life in lives.values()):
        return {label: replace(life, absent=False) for label, life in lives.items()}
    return lives


def verdict(lives: Lives, found: Mapping[str, str], now: float) -> str:
    """One sentence on the engines that hang, and on how the others fare."""
    text = f"{name(lives, found)}: {next(iter(found.values()))}"
    others = {label: life for label, life in lives.items() if label not in found}
    if others:
        ages = sorted(now - life.proof_at for life in others.values())
        last = f"{ages[0]:.0f} s" if ages[0] == ages[-1] else f"{ages[0]:.0f} s to {ages[-1]:.0f} s"
        text += f"; {name(lives, others, whole=False)} last moved {last} ago"
    return text


def name(lives: Lives, labels: Iterable[str], *, whole: bool = True) -> str:
    """These engines in words: `engine 1 of 2`, `engines 0, 1 of 8`, `all 8 engines`."""
    some = list(labels)
    of = f" of {len(lives)}" if whole else ""
    if len(some) == len(lives):
        return f"all {len(lives)} engines"
    if len(some) == 1:
        return f"engine {some[0]}{of}"
    if len(some) > SHOWN:
        return f"{len(some)} engines{of}"
    return f"engines {', '.join(some)}{of}"


def with_hung(lives: Lives, labels: Iterable[str]) -> Lives:
    """The same engines, with these called hung."""
    return {**lives, **{label: replace(lives[label], hung=True) for label in labels}}


def trouble(lives: Lives, now: float) -> str:
    """What STATUS says when not all engines are well; empty otherwise."""
    hung = [label for label, life in lives.items() if life.hung]
    if hung:
        longest = max(now - lives[label].proof_at for label in hung)
        return f"Hung: {name(lives, hung)}: nothing has moved for {duration(longest)}"
    failing = [label for label, life in lives.items() if life.failing_since is not None]
    if failing:
        why = lives[failing[0]].canary_detail or "no answer"
        return f"Ready, but one-token requests to {name(lives, failing)} fail: {why}"
    quiet = [label for label, life in lives.items() if _suspect(life, now)]
    if quiet:
        longest = max(now - lives[label].proof_at for label in quiet)
        return f"Ready, but nothing has moved for {duration(longest)} in {name(lives, quiet)}; asking for one token"
    return ""


def _suspect(life: Life, now: float) -> bool:
    if now - life.proof_at <= QUIET_S * 2:
        return False
    waited = life.canary_sent is not None and now - life.canary_sent >= QUIET_S / 2
    return waited or (life.busy and life.unmoved_since is not None)


def table(lives: Lives, now: float) -> dict[str, dict[str, Any]]:
    """Each engine as plain values, for people and programs."""
    return {
        label: {
            "last_proof_seconds": round(now - life.proof_at, 3),
            "proof": life.proof,
            "hung": life.hung,
            "running": life.counted.running if life.counted is not None else None,
            "waiting": life.counted.waiting if life.counted is not None else None,
            "kv_usage": life.counted.kv_usage if life.counted is not None else None,
        }
        for label, life in lives.items()
    }


COLUMNS = ("engine", "running", "waiting", "KV cache", "last moved")


def rows(status: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The lines of a table of the engines, in the order of COLUMNS; none where there is one engine.

    Args:
        status: What /status says.
    """
    found = []
    for label, row in ((status.get("liveness") or {}).get("engines") or {}).items():
        moved = f"{duration(row['last_proof_seconds'])} ago"
        found.append(
            (
                str(label),
                *("-" if row.get(key) is None else f"{row[key]:.0f}" for key in ("running", "waiting")),
                "-" if row.get("kv_usage") is None else f"{row['kv_usage'] * 100:.0f} %",
                f"hung, {moved}" if row.get("hung") else moved,
            )
        )
    return found
