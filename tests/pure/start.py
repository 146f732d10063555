"""A start that is driven through `step` the way the daemon drives it: events in, effects out, time as a number."""

from dataclasses import dataclass, field, replace

from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.facts import PhaseSeen, StartupComplete
from vllm_supervisor.core.phases import LOADING, ORDER, Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.state import State, initial
from vllm_supervisor.core.step import next_wake, step

PAUSE = 6.0
"""Seconds between the events of a history: more than systemd is told at most (5 s)."""

IDLE = ev.Counted(generation_tokens=10.0, prompt_tokens=5.0, running=0.0, waiting=0.0, kv_usage=0.0, iterations=7.0)
BUSY = replace(IDLE, running=2.0, kv_usage=0.1)
LINE = ev.Output((StartupComplete(),))
ANSWERED = ev.Probed(ev.ProbeOutcome.ANSWERED, full=True, seconds=0.4)
PID = 4711
OOM = Cause("gpu-out-of-memory", evidence="torch.OutOfMemoryError: CUDA out of memory.", phase="loading-weights")


def seen(phase):
    return ev.Output((PhaseSeen(phase),))


@dataclass
class Start:
    """One start and everything that it decided: `told` holds (time, effect)."""

    policy: Policy = field(default_factory=Policy)
    now: float = 1000.0
    state: State = None  # type: ignore[assignment]
    told: list = field(default_factory=list)
    fresh: tuple = ()

    def __post_init__(self):
        self.state = initial(self.policy, self.now)

    @property
    def phase(self):
        return self.state.phase

    def do(self, *events, after=0.0):
        """Feed events, each `after` seconds later; `fresh` holds the effects of all of them."""
        fresh = []
        for event in events:
            self.now += after
            self.state, effects = step(self.state, event, self.now)
            self.told += [(self.now, effect) for effect in effects]
            fresh += effects
        self.fresh = tuple(fresh)
        return self

    def wait(self, seconds, each=None):
        """Let time pass as the loop does: a Tick whenever one is due; `each(start)` may feed more."""
        end = self.now + seconds
        fresh = []
        while self.now < end and self.exit is None:
            self.now = min(max(next_wake(self.state, self.now), self.now + 0.005), end)
            fresh += self.do(ev.Tick()).fresh
            if each is not None:
                before = len(self.told)
                each(self)
                fresh += [effect for _, effect in self.told[before:]]
        self.fresh = tuple(fresh)
        return self

    def of(self, *kinds):
        """(time, effect) of the effects of these types."""
        return [(at, effect) for at, effect in self.told if isinstance(effect, kinds)]

    def count(self, kind):
        return len(self.of(kind))

    @property
    def exit(self):
        ended = [effect for _, effect in self.told if isinstance(effect, fx.Exit)]
        return ended[-1] if ended else None

    def logged(self):
        return "\n".join(effect.message for _, effect in self.of(fx.Log))


def launched(policy=None):
    """The engine's process runs and has printed nothing yet."""
    start = Start(policy or Policy()).do(ev.Begin(), ev.PreflightDone(), ev.Launched(PID), after=PAUSE)
    return start.do(ev.Activity(read_bytes=0, resident_bytes=0, cache_files=0))


def loading(phase, policy=None):
    """The engine has printed the lines of every phase up to this one."""
    start = launched(policy)
    for earlier in ORDER[ORDER.index(Phase.CONFIGURING) : ORDER.index(phase) + 1]:
        start.do(LINE if earlier is Phase.VERIFYING else seen(earlier), after=PAUSE)
    return start


def ready(policy=None):
    """A start that has become ready the usual way."""
    return loading(Phase.VERIFYING, policy).do(ANSWERED, after=PAUSE)


def draining(policy=None):
    """Ready, then asked to stop while two requests run."""
    return ready(policy).do(BUSY, ev.StopRequested("SIGTERM"), after=PAUSE)


def gone(start):
    """The engine ends and nothing is left."""
    return start.do(ev.EngineExited(0), ev.Swept(), after=0.1)


def reach(stand):
    """A start that stands at one of STANDS."""
    start = STANDS[stand]()
    start.fresh = ()
    return start


def kinds(start):
    """The kinds of what the last events gave, the log left out."""
    return [type(effect) for effect in start.fresh if not isinstance(effect, fx.Log)]


def _grace():
    return ready(Policy(grace_s=20.0)).do(BUSY, ev.StopRequested("SIGTERM"), after=PAUSE)


def _stopped():
    return gone(draining().do(IDLE, after=PAUSE))


def _failed():
    return loading(Phase.LOADING_WEIGHTS).do(ev.EngineExited(1), ev.IncidentSaved(), ev.Swept(), after=PAUSE)


STANDS = {
    "preflight": lambda: Start().do(ev.Begin(), after=PAUSE),
    "waiting": lambda: Start(replace(Policy(), wait_s=20.0, attempt=2, last_reason="nccl-error")).do(
        ev.Begin(), after=PAUSE
    ),
    "waiting(turn)": lambda: Start().do(ev.Begin(), ev.PreflightDone(ahead="kimi to finish loading"), after=PAUSE),
    "waiting(nodes)": lambda: Start(Policy(nnodes=2)).do(ev.Begin(), ev.PreflightDone(), after=PAUSE),
    "launching": lambda: Start().do(ev.Begin(), ev.PreflightDone(), after=PAUSE),
    "launching+": launched,
    **{
        str(phase): lambda phase=phase: loading(phase)
        for phase in ORDER
        if phase in LOADING and phase is not Phase.LAUNCHING
    },
    "ready": ready,
    "ready(asked)": lambda: ready().do(BUSY).wait(11.0),
    "draining(grace)": _grace,
    "draining": draining,
    "stopping(term)": lambda: draining().do(IDLE, after=PAUSE),
    "stopping(incident)": lambda: loading(Phase.LOADING_WEIGHTS).do(ev.EngineExited(1), after=PAUSE),
    "stopping(sweep)": lambda: draining().do(IDLE, ev.EngineExited(0), after=PAUSE),
    "stopping(sweep+)": lambda: loading(Phase.LOADING_WEIGHTS).do(ev.EngineExited(1), ev.IncidentSaved(), after=PAUSE),
    "stopped": _stopped,
    "failed": _failed,
}
"""How a start comes to stand somewhere: real histories, no field is poked. A phase may have several stands."""
