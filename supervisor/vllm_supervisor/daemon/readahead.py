"""Reading ahead for one start: from the launch until the engine has its weights, in a helper of ours.

What it reads is nobody's evidence; it is never a reason for a start to fail, and gone before the stop ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters.model_path import locate
from vllm_supervisor.adapters.readahead.client import ReadAhead
from vllm_supervisor.adapters.readahead.mark import hold
from vllm_supervisor.core.account import account, brief
from vllm_supervisor.core.engineflags import effective
from vllm_supervisor.core.phases import WEIGHTS_TO_COME, Phase
from vllm_supervisor.core.plan.engine import parse_version
from vllm_supervisor.core.readahead.order import Order, order_for
from vllm_supervisor.core.readahead.report import Doing, Report, figures, from_fields, words
from vllm_supervisor.core.words import duration

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.core.state import State

    from .instance import Instance

FRESH_S = 600.0
"""So long after READY, STATUS says where the time of the start went."""


class Reading:
    """The reading ahead of one start.

    Args:
        helpers: Pids of our own helper processes; ours is in it while it lives.
        version: The engine's version, as its metadata says.
        rate: Bytes a second of the disk in earlier starts, None where none told it.
    """

    def __init__(
        self,
        instance: Instance,
        helpers: set[int],
        *,
        environment: Mapping[str, str],
        version: str,
        log: structlog.typing.FilteringBoundLogger,
        rate: float | None = None,
    ) -> None:
        self._instance, self._helpers, self._environment = instance, helpers, environment
        self._version = version
        self._log = log
        self._rate = rate
        self._client: ReadAhead | None = None
        self._task: asyncio.Task[None] | None = None
        self._mark: int | None = None
        self.report = Report()
        self.killed = 0
        """How many helpers were ended by SIGKILL; the kernel is to take them before the engine."""

    def begin(self, model: str, began: float) -> None:
        """The engine was launched: read what it will load.

        Args:
            model: What it was told to load.
            began: When its start began, in Unix seconds; of two instances the earlier one reads.
        """
        if self._task is not None:
            return
        runtime_dir = self._instance.runtime_dir
        # Others wait for this load whether or not anything is read ahead for it.
        with contextlib.suppress(OSError):
            self._mark = hold(runtime_dir, began)
        engine = self._instance.settings.engine
        options = effective(engine.command[1:], engine.args)
        order = order_for(
            model,
            options,
            self._instance.settings.load.readahead,
            device=engine.device,
            version=parse_version(self._version),
            runtime_dir=str(runtime_dir),
        )
        if isinstance(order, str):
            self.report = Report(why=order)
            return
        self._task = asyncio.get_running_loop().create_task(self._run(order, str(options.get("revision") or "main")))

    async def _run(self, order: Order, revision: str) -> None:
        client = ReadAhead(started=self._helpers.add)
        try:
            found = await asyncio.to_thread(locate, order.model, {**os.environ, **self._environment}, revision)
            self._client = client
            await client.run(replace(order, model=str(found)), self._heard)
            self.killed += client.killed
        except Exception as problem:  # noqa: BLE001 - a bug here must not end the load that it was to help
            self._heard(replace(self.report, doing=Doing.FAILED, why=f"{type(problem).__name__}: {problem}"))
        finally:
            self._helpers.discard(client.started_pid)

    def _heard(self, report: Report) -> None:
        if report.doing is Doing.FAILED and self.report.doing is not Doing.FAILED:
            self._log.warning(f"read-ahead failed: {report.why}; the engine reads by itself")
        elif report.doing is Doing.OFF:
            self._log.info(f"nothing is read ahead: {report.why}")
        self.report = report

    def follow(self, state: State) -> None:
        """Where the engine stands now; once it has its weights, or is being ended, the reading ends."""
        if self._client is not None and state.shards is not None:
            self._client.engine_at(state.shards.done, state.shards.total)
        if state.phase not in WEIGHTS_TO_COME and (self._task is not None or self._mark is not None) and state.timeline:
            self.end()

    def end(self) -> None:
        """Read no more; the helper goes by itself from here on."""
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    async def close(self) -> None:
        """End it and wait until the helper is gone."""
        self.end()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def active(self) -> bool:
        """Whether the helper is still wanted."""
        return self._task is not None and not self._task.done() and not self._task.cancelling()

    def words(self, state: State, now: float) -> str:
        """What STATUS says of it, or of the time that the start took; empty when that would help nobody."""
        if state.phase is Phase.READY and state.ready_at is not None and now - state.ready_at < FRESH_S:
            return self._took(state, state.ready_at)
        if state.phase not in WEIGHTS_TO_COME or not self.active:
            return ""
        return words(self.report, loading=state.phase is Phase.LOADING_WEIGHTS)

    def _took(self, state: State, now: float) -> str:
        said = brief(_seconds(state, now), figures(self.report), self._rate)
        return f"the start took {duration(now - state.started)}, {said}" if said else ""

    def account(self, state: State, now: float) -> list[str]:
        """Where the time of a start that is ready went, in sentences."""
        if state.ready_at is None:
            return []
        usual = {phase.value: seconds for phase, seconds in state.policy.expected.items()}
        return account(_seconds(state, now), usual, figures(self.report), self._rate)

    def view(self) -> dict[str, Any]:
        """The last report as plain values, with the ratios that follow from it."""
        report = self.report
        if not self.active and report.doing not in {Doing.OFF, Doing.FAILED}:
            report = replace(report, doing=Doing.ENDED, why="", rate=None)
        return {**asdict(report), "hit_ratio": report.hit_ratio, "disk_rate": report.disk_rate}

    def carried(self) -> dict[str, Any]:
        """What a re-execution hands on."""
        return asdict(self.report)

    def resume(self, carried: Mapping[str, Any]) -> None:
        """What the image before found; a report of another version is forgotten."""
        with contextlib.suppress(ValueError, TypeError):
            self.report = from_fields(carried)


def _seconds(state: State, now: float) -> dict[str, float]:
    return {phase.value: seconds for phase, seconds in state.phase_seconds(now).items()}
