"""What can happen: values that adapters queue and `step` answers in every phase; `run --record` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .causes import Cause
from .facts import Fact
from .sightings import Activity, CanaryDone, Counted


class Role(StrEnum):
    """What an engine process is (F3.1)."""

    API_SERVER = "api-server"
    ENGINE_CORE = "engine-core"
    WORKER = "worker"
    COMPILER = "compiler"
    OTHER = "other"


class ProbeOutcome(StrEnum):
    """How far a probe of the engine came."""

    REFUSED = "refused"
    UNHEALTHY = "unhealthy"
    STRANGER = "stranger"
    HEALTHY = "healthy"
    WRONG_MODEL = "wrong-model"
    NO_ANSWER = "no-answer"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Begin:
    """The loop runs; the first event of every start."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: a deadline or the next second."""


@dataclass(frozen=True, slots=True)
class PreflightDone:
    """The check has finished: the first refusal, if any, the warnings, and whose load comes first, if any's."""

    refusal: Cause | None = None
    warnings: tuple[str, ...] = ()
    ahead: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whom this start has to let finish loading first, in a few words; empty when it is its turn."""

    ahead: str = ""


@dataclass(frozen=True, slots=True)
class Peers:
    """How the other nodes of a cluster stand: whom is waited for, whether all are there, why all end.

    `up` says to the head that the others live, and to the others that the model answers.
    """

    missing: str = ""
    admitted: bool = False
    up: bool = False
    fate: Cause | None = None


@dataclass(frozen=True, slots=True)
class Launched:
    """The engine's main process runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The engine's command could not be executed."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Output:
    """The engine printed; only recognised facts travel, not the text."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe has come back."""

    outcome: ProbeOutcome
    full: bool = False
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessDied:
    """A process of the engine other than its main one is gone."""

    pid: int
    role: Role
    name: str = ""


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The engine's main process is gone; negative status is the number of the signal."""

    status: int


@dataclass(frozen=True, slots=True)
class Faulted:
    """Something outside the engine's output proves a fault: Xid, NVML, the kernel's OOM killer."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class StopRequested:
    """SIGTERM or SIGINT came; a second one means: now."""

    by: str = "SIGTERM"


@dataclass(frozen=True, slots=True)
class ReloadRequested:
    """SIGHUP came, or `vllm-supervisor reload`."""


@dataclass(frozen=True, slots=True)
class SmokeDone:
    """The questions with a known answer have been asked.

    Attributes:
        verdict: A sentence that shows it.
        kind: One of `smoke.VERDICTS`; empty when nothing was asked.
        seconds: Duration of the whole test.
        first_token_s: Seconds to the first token.
        tokens_per_s: Tokens a second behind the first one.
        beside: Both next to those of the last tests, in words.
    """

    passed: bool
    verdict: str
    seconds: float = 0.0
    first_token_s: float | None = None
    tokens_per_s: float | None = None
    beside: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class IncidentSaved:
    """What is known of the failure lies on disk (or could not be written: `path` is empty)."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """What is left of the engine after a kill: descriptions of processes, and bytes on GPUs."""

    alive: tuple[str, ...] = ()
    gpu_bytes: int = 0
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The supervisor itself did not run for so long (SIGSTOP, swapping, a frozen machine)."""

    seconds: float


Event = (
    Begin
    | Tick
    | PreflightDone
    | Turn
    | Peers
    | Launched
    | LaunchFailed
    | Output
    | Activity
    | Probed
    | ProcessDied
    | EngineExited
    | Faulted
    | StopRequested
    | ReloadRequested
    | Counted
    | CanaryDone
    | SmokeDone
    | IncidentSaved
    | Swept
    | StoodStill
)
