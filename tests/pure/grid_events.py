"""One value, or a few, of every event, and how a cell of the grid is written."""

from pure.start import ANSWERED, BUSY, IDLE, LINE, PAUSE, PID, reach, seen
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.phases import Phase

GIB = 1 << 30
OUTCOME = ev.ProbeOutcome

EVENTS = {
    "Begin": ev.Begin(),
    "Tick": ev.Tick(),
    "Tick/late": ev.Tick(),
    "PreflightDone": ev.PreflightDone(),
    "PreflightDone/refused": ev.PreflightDone(refusal=Cause("model-not-found", summary="no such directory")),
    "PreflightDone/ahead": ev.PreflightDone(ahead="kimi to finish loading (shard 3 of 9)"),
    "Turn": ev.Turn(),
    "Turn/ahead": ev.Turn("kimi to finish loading (shard 4 of 9)"),
    "Peers": ev.Peers(missing="node 2 of 2"),
    "Peers/admitted": ev.Peers(admitted=True, up=True),
    "Peers/fate": ev.Peers(admitted=True, fate=Cause("node-lost", summary="node 2 of 2 is gone")),
    "Launched": ev.Launched(PID),
    "LaunchFailed": ev.LaunchFailed(Cause("engine-not-executable", summary="no such file")),
    "Output/compiling": seen(Phase.COMPILING),
    "Output/line": LINE,
    "Activity/grown": ev.Activity(read_bytes=9 * GIB, resident_bytes=9 * GIB, cache_files=3, connections=0),
    "Probed/refused": ev.Probed(OUTCOME.REFUSED, detail="connection refused"),
    "Probed/healthy": ev.Probed(OUTCOME.HEALTHY),
    "Probed/answered": ANSWERED,
    "Probed/wrong": ev.Probed(OUTCOME.WRONG_MODEL, full=True, detail="lists a, not b"),
    "ProcessDied/worker": ev.ProcessDied(4712, ev.Role.WORKER, "VLLM::Worker_TP0"),
    "ProcessDied/other": ev.ProcessDied(4713, ev.Role.OTHER, "resource_tracker"),
    "EngineExited": ev.EngineExited(0),
    "Faulted": ev.Faulted(Cause("gpu-lost", summary="Xid 79")),
    "StopRequested": ev.StopRequested("SIGTERM"),
    "ReloadRequested": ev.ReloadRequested(),
    "Counted/busy": BUSY,
    "Counted/idle": IDLE,
    "CanaryDone": ev.CanaryDone(answered=True, seconds=0.1),
    "CanaryDone/failed": ev.CanaryDone(answered=False, seconds=0.1, detail="HTTP 500"),
    "SmokeDone": ev.SmokeDone(passed=True, verdict="right: 'Paris'"),
    "SmokeDone/failed": ev.SmokeDone(passed=False, verdict="the answer was empty"),
    "IncidentSaved": ev.IncidentSaved("/var/lib/x"),
    "Swept/clean": ev.Swept(),
    "Swept/alive": ev.Swept(alive=("pid 7 (vllm)",)),
    "StoodStill": ev.StoodStill(30.0),
}
"""A name up to the slash is the event's type."""

LATE = 2000.0
"""`Tick/late` comes after every deadline and budget."""

LETTERS = {
    "P": fx.Preflight, "a": fx.AwaitTurn, "n": fx.AwaitNodes, "L": fx.Launch, "p": fx.Probe, "R": fx.ReadCounters, "C": fx.Canary, "Q": fx.Smoke,
    "T": fx.Terminate, "K": fx.KillEngine, "W": fx.Sweep, "I": fx.SaveIncident, "r": fx.NotifyReady,
    "s": fx.NotifyStopping, "x": fx.NotifyExtend, "w": fx.NotifyWatchdog, "o": fx.Reload, "l": fx.Log,
    "h": fx.RecordReady, "E": fx.Exit,
}  # fmt: skip
"""One letter for every effect."""

SHORT = {
    Phase.PREFLIGHT: "pre", Phase.WAITING: "wait", Phase.LAUNCHING: "launch", Phase.CONFIGURING: "conf",
    Phase.CONNECTING: "conn", Phase.LOADING_WEIGHTS: "load", Phase.COMPILING: "comp", Phase.SIZING_KV_CACHE: "kv",
    Phase.CAPTURING_GRAPHS: "graph", Phase.STARTING_SERVER: "serv", Phase.VERIFYING: "verify", Phase.READY: "ready",
    Phase.DRAINING: "drain", Phase.STOPPING: "stop", Phase.STOPPED: "stopped", Phase.FAILED: "failed",
}  # fmt: skip


def outcome(stand, event):
    """What `step` answers at a stand, written as a cell: `.`, or `phase`, `phase:effects`, `:effects`."""
    start = reach(stand)
    before = start.phase
    start.do(EVENTS[event], after=LATE if event.endswith("/late") else PAUSE)
    letters = {kind: letter for letter, kind in LETTERS.items()}
    effects = "".join(letters[type(effect)] for effect in start.fresh)
    phase = "" if start.phase is before else SHORT[start.phase]
    return f"{phase}:{effects}" if effects else phase or "."
