"""What `step` wants done. The daemon carries effects out in order and never decides anything itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .causes import Cause
    from .exits import ExitCode


@dataclass(frozen=True, slots=True)
class Preflight:
    """Run the check; answer with PreflightDone."""


@dataclass(frozen=True, slots=True)
class AwaitTurn:
    """Look again in a moment whose load comes first; answer with Turn."""


@dataclass(frozen=True, slots=True)
class AwaitNodes:
    """Speak with the other nodes of the cluster from now on; answer with Peers, whenever there is news."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the engine; answer with Launched or LaunchFailed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the engine; answer with Probed. `full` goes beyond /health to one real request."""

    full: bool


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """Read the engine's counters; answer with Counted."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Ask for one token; answer with CanaryDone. Of several engines the one with this label and rank is meant."""

    engine: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Smoke:
    """Ask the question with a known answer; answer with SmokeDone."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to the engine's main process and to nothing else."""


@dataclass(frozen=True, slots=True)
class KillEngine:
    """SIGKILL to every process that is ours."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Look for what is left; answer with Swept."""


@dataclass(frozen=True, slots=True)
class SaveIncident:
    """Keep what is known of this failure; answer with IncidentSaved."""

    cause: Cause
    stacks: bool = False


@dataclass(frozen=True, slots=True)
class NotifyReady:
    """READY=1."""


@dataclass(frozen=True, slots=True)
class NotifyStopping:
    """STOPPING=1."""


@dataclass(frozen=True, slots=True)
class NotifyExtend:
    """EXTEND_TIMEOUT_USEC, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NotifyWatchdog:
    """WATCHDOG=1."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Re-execute the supervisor, the engine carried over."""


@dataclass(frozen=True, slots=True)
class Log:
    """One line for the operator."""

    level: Literal["debug", "info", "warning", "error"]
    message: str


@dataclass(frozen=True, slots=True)
class RecordReady:
    """The start has succeeded: write it into the history."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Nothing is left to do: write the outcome into the history and leave with this code."""

    code: ExitCode
    outcome: Literal["stopped", "failed"]
    sentence: str
    cause: Cause | None = None


Effect = (
    Preflight
    | AwaitTurn
    | AwaitNodes
    | Launch
    | Probe
    | ReadCounters
    | Canary
    | Smoke
    | Terminate
    | KillEngine
    | Sweep
    | SaveIncident
    | NotifyReady
    | NotifyStopping
    | NotifyExtend
    | NotifyWatchdog
    | Reload
    | Log
    | RecordReady
    | Exit
)
