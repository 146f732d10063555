"""Carrying out effects: each one becomes a call of an adapter, and its result an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never

from vllm_supervisor.adapters.processes import reap
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core.events import IncidentSaved, Launched, LaunchFailed, Probed, ProbeOutcome, SmokeDone
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.redact import by_shape
from vllm_supervisor.core.sightings import CanaryDone

from .ending import sweep
from .record import not_executable, record_end, record_ready
from .saving import save_incident
from .smoke import kept

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.adapters.history import History
    from vllm_supervisor.adapters.notify import Notifier
    from vllm_supervisor.adapters.processes import Processes
    from vllm_supervisor.core.events import Event, PreflightDone
    from vllm_supervisor.core.gpu import GpuTable
    from vllm_supervisor.core.state import State

    from .cluster import Cluster
    from .engine_run import EngineRun
    from .instance import Instance
    from .neighbours import Neighbours
    from .readahead import Reading
    from .watch import Watch
    from .witness import Witness

PROBE_LIMIT_S = 150.0
SEND_EVERY_S = 0.1
SEND_TIMES = 600


@dataclass(slots=True)
class Parts:
    """What a performer works with; made once by `main`."""

    instance: Instance
    put: Callable[[Event], None]
    log: structlog.typing.FilteringBoundLogger
    notifier: Notifier
    history: History
    processes: Processes
    http: EngineHttp
    watch: Watch
    reading: Reading
    run: EngineRun
    start_id: str
    command: Callable[[], list[str]]
    model: Callable[[], str]
    environment: Mapping[str, str]
    devices: Callable[[], Mapping[str, str]]
    neighbours: Neighbours
    cluster: Cluster
    preflight: Callable[[], PreflightDone]
    smoke: Callable[[], Coroutine[Any, Any, SmokeDone]]
    gpu_table: Callable[[], GpuTable | None]
    reload: Callable[[], Coroutine[Any, Any, None]] | None = None
    gpu_before: int | None = None
    began_wall: float = field(default_factory=time.time)
    last_probe_s: float | None = None
    last_load_s: float | None = None
    dropped: Callable[[], int] = lambda: 0
    incident: str = ""
    reloads: int = 0
    witness: Witness | None = None
    redact: Callable[[str], str] = by_shape


class Performer:
    """Carries effects out; never decides, never blocks the loop."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._killed = False

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # A bug of ours must end in 70, not in a task that nobody looks at.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "an effect failed", "exception": task.exception(), "task": task},
            )

    def perform(self, effect: fx.Effect, state: State) -> None:
        """Carry out one effect; what takes time runs beside the loop and answers with an event."""
        parts = self.parts
        match effect:
            case fx.Preflight():
                self._start(self._answer(asyncio.to_thread(parts.preflight)))
            case fx.AwaitTurn():
                self._start(self._answer(parts.neighbours.turn()))
            case fx.AwaitNodes():
                parts.cluster.begin()
            case fx.Launch():
                self._launch()
            case fx.Probe():
                self._start(self._probe(full=effect.full))
            case fx.ReadCounters():
                self._start(parts.watch.read_counters(fresh=True))
            case fx.Canary():
                self._start(self._canary(state, effect))
            case fx.Smoke():
                self._start(self._smoke())
            case fx.Terminate():
                # What dies of the signal can no longer be asked for its segments.
                parts.watch.remember_segments()
                if not parts.run.terminate():
                    parts.log.debug("the engine's main process is already gone")
            case fx.KillEngine():
                self._killed = True
            case fx.Sweep():
                self._start(sweep(parts, kill=self._killed))
            case fx.SaveIncident():
                self._start(self._incident(effect, state))
            case fx.NotifyReady():
                self._insist(ready="1", status=f"Ready after {time.time() - parts.began_wall:.0f} s")
            case fx.NotifyStopping():
                self._insist(stopping="1")
            case fx.NotifyExtend():
                parts.notifier.send(extend_timeout_usec=str(int(effect.seconds * 1e6)))
            case fx.NotifyWatchdog():
                parts.notifier.send(watchdog="1")
            case fx.Reload():
                if parts.reload is None:
                    parts.log.warning("reload refused: this supervisor cannot carry an engine over, restart it")
                else:
                    self._start(parts.reload())
            case fx.Log():
                getattr(parts.log, effect.level)(effect.message)
            case fx.RecordReady():
                record_ready(parts, state)
            case fx.Exit():
                record_end(parts, effect, state)
            case _:
                assert_never(effect)

    def _insist(self, **fields: str) -> None:
        """Send what systemd must not miss: while its socket is full it is tried again."""
        if not self.parts.notifier.send(**fields):
            self._start(self._send_again(fields))

    async def _send_again(self, fields: Mapping[str, str]) -> None:
        for _ in range(SEND_TIMES):
            await asyncio.sleep(SEND_EVERY_S)
            if self.parts.notifier.send(**fields):
                return
        self.parts.log.error(f"the service manager could not be told {', '.join(fields)}: its socket takes nothing")

    def tell(self, text: str, state: State, now: float) -> None:
        """STATUS=, and the same for the other instances of the machine."""
        parts, shown = self.parts, self.parts.redact(text)
        parts.notifier.send(status=shown)
        parts.neighbours.tell(state, shown, {"rates": parts.watch.rates(now)})

    def phase_changed(self, state: State, now: float) -> None:
        """A phase was entered: the log and the history want to know."""
        seconds = {phase.value: round(value, 3) for phase, value in state.phase_seconds(now).items()}
        self.parts.log.info(f"phase {state.phase}")
        self.parts.history.update(phases=seconds)

    async def look(self, state: State) -> None:
        """Sample the engine; while it serves its counters, too."""
        reap(state.engine_pid, self.parts.processes.helpers)
        await self.parts.watch.look(state.phase, state.engine_pid)
        if self.parts.witness is not None:
            self.parts.witness.look(self.parts.watch.pids(), state.engine_pid)
        if state.ready_at is not None:
            # A drain must not end because of what was true before a request came.
            await self.parts.watch.read_counters(fresh=state.phase is not Phase.READY)

    async def _answer(self, work: Coroutine[Any, Any, Event]) -> None:
        self.parts.put(await work)

    def _launch(self) -> None:
        parts = self.parts
        table = parts.gpu_table()
        if table is not None and table.ok:
            parts.gpu_before = sum(sample.memory_used_bytes or 0 for sample in table.samples)
        command = parts.command()
        try:
            pid = parts.run.start(command, {**parts.environment, **parts.devices()})
        except OSError as error:
            parts.put(LaunchFailed(not_executable(command[0], error)))
            return
        parts.log.info(f"engine started as pid {pid}")
        parts.put(Launched(pid))
        parts.reading.begin(parts.model(), parts.began_wall)

    async def _probe(self, *, full: bool) -> None:
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                result = await self.parts.http.probe(full=full)
        except TimeoutError:
            result = Probed(ProbeOutcome.NO_ANSWER, full, "no answer in time")
        if result.outcome in {ProbeOutcome.HEALTHY, ProbeOutcome.ANSWERED}:
            self.parts.last_probe_s = result.seconds
        self.parts.put(result)

    async def _canary(self, state: State, effect: fx.Canary) -> None:
        watch = self.parts.watch
        watch.canaries += 1
        try:
            result = await self.parts.http.canary(max(state.policy.hang_after_s * 2, 30.0), effect.rank)
        except TimeoutError:
            result = CanaryDone(answered=False, seconds=0.0, detail="no answer in time")
        finally:
            watch.canaries -= 1
        self.parts.put(replace(result, engine=effect.engine))

    async def _smoke(self) -> None:
        watch = self.parts.watch
        watch.canaries += 1
        try:
            result = await self.parts.smoke()
        finally:
            watch.canaries -= 1
        self.parts.history.update(smoke=kept(result, self.parts.instance.settings))
        self.parts.put(result)

    async def _incident(self, effect: fx.SaveIncident, state: State) -> None:
        path = await save_incident(self.parts, effect, state)
        self.parts.incident = path
        self.parts.put(IncidentSaved(path))
