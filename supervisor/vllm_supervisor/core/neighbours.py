"""Several instances on one machine: what each of them takes, and where two take the same.

What a configuration takes is known from its file (`Needs`); what a running instance does, it says
itself in a small file (`Claim`) that everybody may read, whoever its user is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound


class Standing(StrEnum):
    """How real another instance is."""

    CONFIGURED = "configured"
    ENABLED = "enabled"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Needs:
    """What an instance takes of the machine, by its configuration.

    Attributes:
        name: The instance.
        gpus: Indices or UUIDs as they were written, in order; None when nothing was said, which
            means the first ones of the machine.
        count: How many GPUs the engine uses; 0 on the CPU.
        share: Part of each GPU's memory that it may take.
        engine: ADDRESS:PORT of the engine; empty when it listens on a unix socket.
        metrics: ADDRESS:PORT of the supervisor's own page.
        further: (setting, ADDRESS:PORT) of each other port that it cannot do without.
    """

    name: str
    gpus: tuple[str, ...] | None = None
    count: int = 1
    share: float = 0.9
    engine: str = ""
    metrics: str = ""
    further: tuple[tuple[str, str], ...] = ()

    @property
    def listens(self) -> tuple[str, ...]:
        """ADDRESS:PORT of all of them."""
        return tuple(filter(None, (self.engine, self.metrics, *(listen for _, listen in self.further))))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a running instance says of itself.

    Attributes:
        pid: Its supervisor's.
        born: Start time of that process in the kernel's ticks: a number that was given away is told by it.
        since: Monotonic seconds at which this start asked for its turn to load.
        loading: It reads its checkpoint, or is about to.
        waiting: It waits for its turn to load.
        checkpoint: What it loads, as a path; two that load the same share the page cache.
        size: Bytes of it; 0 when unknown.
        page: What its /status says in short, for people.
    """

    needs: Needs
    pid: int
    born: int
    since: float = 0.0
    loading: bool = False
    waiting: bool = False
    checkpoint: str = ""
    size: int = 0
    page: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another instance of this machine."""

    needs: Needs
    standing: Standing


def to_document(claim: Claim) -> dict[str, Any]:
    """A claim as plain JSON."""
    needs = {name: getattr(claim.needs, name) for name in Needs.__slots__}
    return {**{name: getattr(claim, name) for name in Claim.__slots__}, "needs": needs}


def from_document(raw: Any) -> Claim | None:
    """The claim out of plain JSON; None when it is none (of another version, half deleted)."""
    try:
        needs = dict(raw["needs"])
        gpus = needs["gpus"]
        needs["gpus"] = None if gpus is None else tuple(str(word) for word in gpus)
        needs["further"] = tuple((str(setting), str(listen)) for setting, listen in needs.get("further", ()))
        page = raw["page"] if isinstance(raw["page"], dict) else {}
        claim = Claim(**{**raw, "needs": Needs(**needs), "page": page})
        return claim if isinstance(claim.pid, int) and isinstance(claim.size, int) else None
    except (KeyError, TypeError, ValueError):
        return None


def same_port(one: str, other: str) -> bool:
    """Whether two listeners want the same port: equal numbers on addresses that meet."""
    host, _, port = one.rpartition(":")
    other_host, _, other_port = other.rpartition(":")
    if not port or port == "0" or port != other_port:
        return False
    mine, theirs = host.strip("[]"), other_host.strip("[]")
    return mine == theirs or mine in WILDCARDS or theirs in WILDCARDS


def free_port(host: str, first: int, taken: Sequence[str], held: Callable[[int], bool], *, tries: int = 1000) -> int:
    """The first port from `first` on that no instance is configured with and nobody holds; `first` when all are taken.

    Args:
        host: Address to listen on.
        first: Where the search begins.
        taken: ADDRESS:PORT of every listener of other instances.
        held: Whether somebody listens on a port now.
        tries: So many ports are looked at.
    """
    for port in range(first, min(first + tries, 65_536)):
        if not any(same_port(f"{host}:{port}", other) for other in taken) and not held(port):
            return port
    return first


def chosen_gpus(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """The words of CUDA_VISIBLE_DEVICES; None where it is not set, and all GPUs are seen."""
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    return None if chosen is None else tuple(word.strip() for word in chosen.split(",") if word.strip())


def named(words: Sequence[str] | None, known: Sequence[tuple[int, str]]) -> tuple[int, ...]:
    """The GPUs that are meant, by index and in order; an unknown word ends the list, as CUDA has it.

    Args:
        words: Indices or (the begin of) UUIDs; None means all.
        known: (index, UUID) of the GPUs of the machine.
    """
    if words is None:
        return tuple(index for index, _ in known)
    found: list[int] = []
    for word in words:
        match = next(
            (
                index
                for index, uuid in known
                if (word.isdigit() and index == int(word)) or (word and uuid.startswith(word))
            ),
            None,
        )
        if match is None:
            break
        found.append(match)
    return tuple(found)


def common_gpus(mine: Needs, other: Needs, known: Sequence[tuple[int, str]]) -> tuple[int, ...]:
    """The GPUs that two instances both use and that are too small for both, by index."""
    if not mine.count or not other.count or mine.share + other.share <= 1.0:
        return ()
    used = set(named(other.gpus, known)[: other.count])
    return tuple(index for index in named(mine.gpus, known)[: mine.count] if index in used)


def listed(indices: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0-3, 6`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"GPU{'s' if len(indices) > 1 else ''} {text}"


def ahead(mine: Claim, others: Sequence[Claim], cacheable: int | None) -> Claim | None:
    """Whom a start has to let finish loading first; None when it may load now.

    Two loads side by side are no harm as long as memory can cache what both read. Beyond that each
    throws out of the page cache what the other is about to read. Who asked first loads first.

    Args:
        mine: Our own claim.
        others: The claims of the other running instances.
        cacheable: Bytes that can hold file pages; None when unknown, and then nobody waits.
    """
    if cacheable is None or not mine.size:
        return None
    before = [
        other
        for other in others
        if other.size
        and (other.loading or (other.waiting and (other.since, other.needs.name) < (mine.since, mine.needs.name)))
    ]
    sizes = {other.checkpoint: other.size for other in before} | {mine.checkpoint: mine.size}
    if not before or len(sizes) == 1 or sum(sizes.values()) <= cacheable:
        return None
    # The one that loads is seen to move; those that wait themselves come after it.
    return min(before, key=lambda other: (not other.loading, other.since, other.needs.name))


def waiting_for(other: Claim) -> str:
    """Whom a start waits for, in a few words for STATUS."""
    page = other.page
    shards = page.get("shards")
    if isinstance(shards, Mapping) and shards.get("total"):
        return f"{other.needs.name} to finish loading (shard {shards.get('loaded', 0):.0f} of {shards['total']:.0f})"
    return f"{other.needs.name} to finish loading ({page.get('phase') or 'starting'})"
