"""The loop: one task owns the state; the next event is decided by core, its effects are carried out.

Signal handlers, readers, probes and samplers only put events into the queue. Nothing here decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_supervisor.core.effects import Exit
from vllm_supervisor.core.events import Begin, Event, ReloadRequested, StoodStill, StopRequested, Tick
from vllm_supervisor.core.phases import LOADING, SERVING, SETTLED, Phase
from vllm_supervisor.core.slower import slow_start
from vllm_supervisor.core.state import State, initial
from vllm_supervisor.core.status import sentence
from vllm_supervisor.core.step import next_wake, step

from .watch import LOOK_EVERY_S

if TYPE_CHECKING:
    from vllm_supervisor.core.policy import Policy

    from .perform import Performer
    from .recorder import Recorder

STATUS_EVERY_S = 1.0
"""STATUS= is sent at most this often within a phase; a new phase is told at once."""

TICK_LEAST_S = 0.005
STANDSTILL_S = 2.0
"""A turn comes each second at the latest; with so much between two, we did not run ourselves."""

DRAIN_LOOK_EVERY_S = 0.5


class Supervisor:
    """Owns the state of one start and runs it to its end.

    Args:
        policy: What the start is decided by.
        record: Where events are written for `replay`, if anywhere.
        state: The state to go on from, after a re-execution.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        record: Recorder | None = None,
        clock: Callable[[], float] | None = None,
        state: State | None = None,
    ) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._clock = clock or asyncio.get_running_loop().time
        self._record = record
        self.state: State = state or initial(policy, self._clock())
        self.exit: Exit | None = None
        self.note = ""
        """Something of our own that the operator must know; part of STATUS."""
        self.compared = 0
        """From how many earlier starts the expected lengths come."""
        self._slow = False
        self._told: tuple[str, tuple[object, ...], float] = ("", (), float("-inf"))
        self._look_now = asyncio.Event()
        self._ticked_at = self._turned_at = self._clock()
        self._held: Event | None = None
        if record is not None:
            record.write(policy, self.state.started)

    def put(self, event: Event) -> None:
        """Queue an event; from the loop's own thread only."""
        self._queue.put_nowait(event)

    def ask_to_stop(self) -> None:
        """End in order because of a bug of ours."""
        self.put(StopRequested("a bug of the supervisor"))

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT ask for the end, SIGHUP for a reload."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.put, StopRequested(number.name))
        loop.add_signal_handler(signal.SIGHUP, self.put, ReloadRequested())

    async def run(self, performer: Performer, first: Event | None = None) -> Exit:
        """Run until nothing is left to do."""
        self.put(first or Begin())
        self._turned_at = self._clock()
        watching = asyncio.create_task(self._look_regularly(performer))
        try:
            while self.exit is None:
                event = await self._next()
                self.turn(event, performer)
            return self.exit
        finally:
            watching.cancel()

    async def _next(self) -> Event:
        now = self._clock()
        if now - self._turned_at >= STANDSTILL_S:
            return StoodStill(now - self._turned_at)
        if self._held is not None:
            held, self._held = self._held, None
            return held
        wake = min(next_wake(self.state, now), self._ticked_at + 1.0)
        if wake <= now and now - self._ticked_at >= TICK_LEAST_S:
            return Tick()
        try:
            async with asyncio.timeout(max(wake - now, TICK_LEAST_S)):
                event = await self._queue.get()
        except TimeoutError:
            event = Tick()
        now = self._clock()
        if now - self._turned_at < STANDSTILL_S:
            return event
        self._held = event  # nothing is judged before the lost time is known
        return StoodStill(now - self._turned_at)

    def turn(self, event: Event, performer: Performer) -> None:
        """One finished turn of the loop: decide, then carry out."""
        self._turned_at = now = self._clock()
        if isinstance(event, Tick):
            self._ticked_at = now
        if self._record is not None:
            self._record.write(event, now)
        before = self.state.phase
        self.state, effects = step(self.state, event, now)
        for effect in effects:
            if isinstance(effect, Exit):
                self.exit = effect
            performer.perform(effect, self.state)
        performer.parts.reading.follow(self.state)
        performer.parts.cluster.follow(self.state)
        if self.state.phase is not before:
            performer.phase_changed(self.state, now)
            self._look_now.set()
        self._tell(performer, now)

    def _tell(self, performer: Performer, now: float) -> None:
        state = self.state
        text, what, at = self._told
        urgent = (state.phase, state.dying, state.stop_step)
        if urgent == what and now - at < STATUS_EVERY_S:
            return
        slow = slow_start(state, now, self.compared) if state.phase in LOADING else ""
        if slow and not self._slow:
            performer.parts.log.warning(slow)
        self._slow = self._slow or bool(slow)
        notes = "; ".join(filter(None, (slow, self.note, performer.parts.reading.words(state, now))))
        new = sentence(state, now, rates=performer.parts.watch.rates(now), note=notes)
        self._told = (new, urgent, now)
        if new != text:
            performer.tell(new, state, now)

    async def _look_regularly(self, performer: Performer) -> None:
        """Samples while there is something to see; a look that hangs does not pile up."""
        while True:
            phase = self.state.phase
            draining = phase is Phase.DRAINING
            # A new phase brings new processes: they are looked at at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_EVERY_S if draining else LOOK_EVERY_S):
                    await self._look_now.wait()
            self._look_now.clear()
            phase = self.state.phase
            if phase in LOADING | SERVING:
                await performer.look(self.state)
            elif phase in SETTLED:
                return
