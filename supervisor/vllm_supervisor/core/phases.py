"""The phases of a start, their groups and their stall budgets.

A phase is entered when its line is seen in the engine's output; engines skip and reorder the
middle ones, and no phase ever blocks on an earlier one.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a start stands."""

    PREFLIGHT = "preflight"
    WAITING = "waiting"
    LAUNCHING = "launching"
    CONFIGURING = "configuring"
    CONNECTING = "connecting"
    LOADING_WEIGHTS = "loading-weights"
    COMPILING = "compiling"
    SIZING_KV_CACHE = "sizing-kv-cache"
    CAPTURING_GRAPHS = "capturing-graphs"
    STARTING_SERVER = "starting-server"
    VERIFYING = "verifying"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


BEFORE_ENGINE = frozenset({Phase.PREFLIGHT, Phase.WAITING})
"""No engine process exists yet."""

LOADING = frozenset(
    {
        Phase.LAUNCHING,
        Phase.CONFIGURING,
        Phase.CONNECTING,
        Phase.LOADING_WEIGHTS,
        Phase.COMPILING,
        Phase.SIZING_KV_CACHE,
        Phase.CAPTURING_GRAPHS,
        Phase.STARTING_SERVER,
        Phase.VERIFYING,
    },
)
"""The engine runs and cannot answer yet."""

WEIGHTS_TO_COME = frozenset({Phase.LAUNCHING, Phase.CONFIGURING, Phase.CONNECTING, Phase.LOADING_WEIGHTS})
"""The engine runs, and the checkpoint is read or about to be."""

SERVING = frozenset({Phase.READY, Phase.DRAINING})
"""READY=1 was sent and the engine has not been told to end."""

ENDING = frozenset({Phase.STOPPING})
"""The engine is being ended, whatever the reason."""

SETTLED = frozenset({Phase.STOPPED, Phase.FAILED})
"""Nothing more will happen; the process is about to exit."""

GROUPS = (BEFORE_ENGINE, LOADING, SERVING, ENDING, SETTLED)

ORDER = tuple(Phase)
"""The usual order, as the phases are declared."""

DEFAULT_BUDGETS: dict[Phase, float] = {
    Phase.LAUNCHING: 120.0,
    Phase.CONFIGURING: 120.0,
    Phase.CONNECTING: 180.0,
    Phase.LOADING_WEIGHTS: 120.0,
    Phase.COMPILING: 900.0,
    Phase.SIZING_KV_CACHE: 300.0,
    Phase.CAPTURING_GRAPHS: 600.0,
    Phase.STARTING_SERVER: 120.0,
    Phase.VERIFYING: 120.0,
}
"""Seconds without any evidence of progress after which a phase counts as stalled."""

BUDGET_CEILING = 1800.0
"""No budget learnt from the history is longer than this, in seconds."""


def budget(phase: Phase, longest_gap: float | None) -> float:
    """The stall budget of `phase`, in seconds.

    Args:
        phase: One of `LOADING`.
        longest_gap: The longest time between two pieces of evidence in successful starts of this
            instance on this machine, in seconds; None without history.

    Returns:
        Three times the longest gap, held between a third of the default and `BUDGET_CEILING`;
        the default when there is no history.
    """
    default = DEFAULT_BUDGETS[phase]
    if longest_gap is None:
        return default
    return min(max(3.0 * longest_gap, default / 3.0), BUDGET_CEILING)
