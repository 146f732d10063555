"""Carrying out effects: each one becomes a call of an adapter, and its result an event."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from vllm_supervisor import __version__
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.events import (
    CanaryDone,
    IncidentSaved,
    Launched,
    LaunchFailed,
    PreflightDone,
    Probed,
    ProbeOutcome,
    SmokeDone,
)
from vllm_supervisor.core.phases import Phase

from .ending import save_incident, sweep

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.adapters.history import History
    from vllm_supervisor.adapters.notify import Notifier
    from vllm_supervisor.adapters.processes import Processes
    from vllm_supervisor.core.events import Event
    from vllm_supervisor.core.gpu import GpuTable
    from vllm_supervisor.core.state import State

    from .engine_run import EngineRun
    from .instance import Instance
    from .watch import Watch

PROBE_LIMIT_S = 150.0


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
    run: EngineRun
    start_id: str
    command: list[str]
    environment: Mapping[str, str]
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


class Performer:
    """Carries effects out; never decides, never blocks the loop."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._killed = False
        self._looking = False

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
                self._start(self._preflight())
            case fx.Launch():
                self._launch()
            case fx.Probe():
                self._start(self._probe(full=effect.full))
            case fx.ReadCounters():
                self._start(parts.watch.read_counters())
            case fx.Canary():
                self._start(self._canary(state))
            case fx.Smoke():
                self._start(self._smoke())
            case fx.Terminate():
                if not parts.run.terminate():
                    parts.log.debug("the engine's main process is already gone")
            case fx.KillEngine():
                self._killed = True
            case fx.Sweep():
                self._start(sweep(parts, kill=self._killed))
            case fx.SaveIncident():
                self._start(self._incident(effect, state))
            case fx.NotifyReady():
                parts.notifier.send(ready="1", status=f"Ready after {time.time() - parts.began_wall:.0f} s")
            case fx.NotifyStopping():
                parts.notifier.send(stopping="1")
            case fx.NotifyExtend():
                parts.notifier.send(extend_timeout_usec=str(int(effect.seconds * 1e6)))
            case fx.NotifyWatchdog():
                parts.notifier.send(watchdog="1")
            case fx.Reload():
                if parts.reload is not None:
                    self._start(parts.reload())
            case fx.Log():
                getattr(parts.log, effect.level)(effect.message)
            case fx.RecordReady():
                self._record_ready(state)
            case fx.Exit():
                self._record_end(effect, state)
            case _:
                assert_never(effect)

    def tell(self, text: str) -> None:
        """STATUS=."""
        self.parts.notifier.send(status=text)

    def rates(self, now: float) -> dict[str, float]:
        """Tokens a second over the last ten seconds, where they are known."""
        watch = self.parts.watch
        rates: dict[str, float] = {}
        generation, prompt = watch.generation.rate(10.0, now), watch.prompt.rate(10.0, now)
        if generation is not None:
            rates["generation"] = generation
        if prompt is not None:
            rates["prompt"] = prompt
        return rates

    def phase_changed(self, state: State, now: float) -> None:
        """A phase was entered: the log and the history want to know."""
        seconds = {phase.value: round(value, 3) for phase, value in state.phase_seconds(now).items()}
        self.parts.log.info(f"phase {state.phase}")
        self.parts.history.update(phases=seconds)
        if state.phase is Phase.READY:
            self._start(asyncio.to_thread(self.parts.watch.remember_segments))

    async def look(self, state: State) -> None:
        """Sample the engine; while it serves its counters, too."""
        await self.parts.watch.look(state.phase, state.engine_pid)
        if state.ready_at is not None:
            await self.parts.watch.read_counters()

    async def _preflight(self) -> None:
        self.parts.put(await asyncio.to_thread(self.parts.preflight))

    def _launch(self) -> None:
        parts = self.parts
        table = parts.gpu_table()
        if table is not None and table.ok:
            parts.gpu_before = sum(sample.memory_used_bytes or 0 for sample in table.samples)
        try:
            pid = parts.run.start(parts.command, parts.environment)
        except OSError as error:
            parts.put(LaunchFailed(_not_executable(parts.command[0], error)))
            return
        parts.log.info(f"engine started as pid {pid}")
        parts.put(Launched(pid))

    async def _probe(self, *, full: bool) -> None:
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                result = await self.parts.http.probe(full=full)
        except TimeoutError:
            result = Probed(ProbeOutcome.NO_ANSWER, full, "no answer in time")
        if result.outcome in {ProbeOutcome.HEALTHY, ProbeOutcome.ANSWERED}:
            self.parts.last_probe_s = result.seconds
        self.parts.put(result)

    async def _canary(self, state: State) -> None:
        watch = self.parts.watch
        watch.canaries += 1
        try:
            result = await self.parts.http.canary(max(state.policy.hang_after_s * 2, 30.0))
        except TimeoutError:
            result = CanaryDone(answered=False, seconds=0.0, detail="no answer in time")
        finally:
            watch.canaries -= 1
        self.parts.put(result)

    async def _smoke(self) -> None:
        watch = self.parts.watch
        watch.canaries += 1
        try:
            result = await self.parts.smoke()
        finally:
            watch.canaries -= 1
        self.parts.history.update(
            smoke={"passed": result.passed, "verdict": result.verdict, "seconds": round(result.seconds, 3)},
        )
        self.parts.put(result)

    async def _incident(self, effect: fx.SaveIncident, state: State) -> None:
        path = await save_incident(self.parts, effect, state)
        self.parts.incident = path
        self.parts.put(IncidentSaved(path))

    def _record_ready(self, state: State) -> None:
        figures = {name.value: value for name, value in state.figures.items()}
        self.parts.history.update(
            ready_at=time.time(),
            outcome="ready",
            engine_version=str(figures.get("engine_version", "")),
            figures=figures,
            gaps={phase.value: round(gap, 3) for phase, gap in state.evidence.gaps.items()},
        )
        self.parts.history.count("starts", "ready")

    def _record_end(self, effect: fx.Exit, state: State) -> None:
        history, cause = self.parts.history, effect.cause
        history.update(
            ended_at=time.time(),
            outcome=effect.outcome,
            exit_code=int(effect.code),
            reason=cause.reason if cause else "",
            sentence=effect.sentence,
            incident=self.parts.incident,
            engine_version=str(state.figures.get("engine_version", "")),  # type: ignore[call-overload]
            **({"class": cause.cause_class.value} if cause else {}),
        )
        if state.ready_at is None:
            history.count("starts", effect.outcome)
        if cause is not None:
            history.count("failures", f"{cause.reason}/{cause.cause_class}")
        level = "info" if effect.outcome == "stopped" else "error"
        getattr(self.parts.log, level)(f"{effect.sentence} (exit {int(effect.code)})")
        self.parts.log.debug(f"vllm-supervisor {__version__}, pid {os.getpid()}")


def _not_executable(program: str, error: OSError) -> Cause:
    if isinstance(error, FileNotFoundError):
        summary, advice = f"{program} does not exist", "Set engine.command to the vllm program of its environment."
    elif isinstance(error, PermissionError):
        summary = f"{program} cannot be executed by this user"
        advice = "Make the environment with /usr/bin/python3 outside of home directories (see docs/install.md)."
    else:
        summary, advice = f"{program} cannot be started: {error.strerror}", "Look at engine.command."
    return Cause("engine-not-executable", summary=summary, advice=advice, phase=Phase.LAUNCHING)
