"""Upgrade in place: the supervisor re-executes itself, the engine goes on.

First a trial child, made from the code that lies on disk now, loads the configuration and the
carried state. Only when it has said yes does the running process replace its own image. A SIGTERM
that comes in between stays pending until the new image can hear it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .carry import Carried, to_text

if TYPE_CHECKING:
    from .build import Outlets
    from .perform import Parts
    from .supervisor import Supervisor

TRIAL_S = 75.0
"""Seconds that the new code may take to say yes: on a host that is saturated by its engine, starting Python and loading
our modules took 20 s and more. The unit's TimeoutStartSec, 3 min, bounds the whole reload."""
HELD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
RESUME = "--resume-fd"


class Reloader:
    """Re-executes the daemon.

    Args:
        argv: The command line that this process was started with, without the program.
        lock: Descriptor of the instance's lock.
        before_exec: Ends what the new image starts anew (server, GPU sampler); after it there is
            no way back but forward.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        parts: Parts,
        outlets: Outlets,
        *,
        argv: list[str],
        lock: int,
        before_exec: Callable[[], Awaitable[None]],
    ) -> None:
        self._supervisor, self._parts, self._outlets = supervisor, parts, outlets
        self._argv = argv
        self._lock = lock
        self._before_exec = before_exec
        self._busy = False
        self.warning = ""

    async def reload(self) -> None:
        """Try, then replace this image; a refusal is logged and this image goes on."""
        if not await self.check():
            await self._replace()

    async def check(self) -> str:
        """Why a reload is refused, after the trial; empty when it is not."""
        if self._busy:
            return "another reload is under way"
        self._busy = True
        verdict = await self._trial()
        refused = str(verdict.get("refused") or "")
        if refused:
            self._busy = False
            self._parts.log.error(f"reload refused: {refused}")
            return refused
        changed = verdict.get("changed") or []
        self.warning = f"takes effect at the next restart of the engine: {', '.join(changed)}" if changed else ""
        if self.warning:
            self._parts.log.warning(self.warning)
        return ""

    def go(self) -> None:
        """Replace this image, after a check that was passed."""
        self._going = asyncio.get_running_loop().create_task(self._replace())

    def _carried(self) -> Carried:
        parts, run = self._parts, self._parts.run
        return Carried(
            state=self._supervisor.state,
            start_id=parts.start_id,
            task=parts.http.task,
            engine=parts.instance.settings.engine.model_dump(mode="json"),
            env=dict(parts.instance.env),
            pipes=dict(run.reader.pipes) if run.reader is not None else {},
            lock=self._lock,
            history=parts.history.current,
            began_wall=parts.began_wall,
            reloads=parts.reloads,
            generation=parts.watch.generation,
            prompt=parts.watch.prompt,
            partial=run.partial(),
            tail=run.tail.all(),
            lines=dict(run.lines),
            segments=sorted(parts.watch.segments),
            dropped=parts.dropped(),
            notify_errors=parts.notifier.errors,
            incident=parts.incident,
            last_probe_s=parts.last_probe_s,
            gpu_before=parts.gpu_before,
            readahead=parts.reading.carried(),
            cluster=parts.cluster.carried(),
        )

    async def _trial(self) -> dict[str, Any]:
        """What a child of the new code says of configuration and carried state."""
        command = [sys.executable, "-P", "-m", "vllm_supervisor", "trial", *self._argv]
        # As a file, not through a pipe: nobody has to write while the child may be slow, stuck or gone.
        memory = _in_memory(to_text(self._carried()))
        try:
            child = await asyncio.create_subprocess_exec(
                *command, stdin=memory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            return {"refused": f"the new supervisor cannot be started: {error.strerror}"}
        finally:
            os.close(memory)
        self._parts.processes.helpers.add(child.pid)
        try:
            async with asyncio.timeout(TRIAL_S):
                out, err = await child.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            return {"refused": f"the new supervisor did not answer within {TRIAL_S:.0f} s"}
        finally:
            self._parts.processes.helpers.discard(child.pid)
        try:
            verdict: dict[str, Any] = json.loads(out)
        except ValueError:
            last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            return {"refused": f"the new supervisor does not run (exit {child.returncode}): {last}"}
        return verdict

    async def _replace(self) -> None:
        """Replace this image. What fails before the point of no return leaves this image running."""
        run = self._parts.run
        if run.reader is not None and not await asyncio.to_thread(run.reader.detach):
            self._busy = False
            self._parts.log.error("reload refused: the output of the engine could not be handed over")
            return
        await self._before_exec()
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        carried = self._carried()
        memory = _in_memory(to_text(carried))
        for descriptor in (*carried.pipes.values(), carried.lock):
            fcntl.fcntl(descriptor, fcntl.F_SETFD, 0)
        self._parts.history.close()
        await asyncio.to_thread(self._outlets.close, 2.0)
        argv = [sys.executable, "-P", "-m", "vllm_supervisor", *self._argv, RESUME, str(memory)]
        environment = {**os.environ, **self._outlets.variables}
        os.execve(sys.executable, argv, environment)  # noqa: S606 - our own program


def _in_memory(text: str) -> int:
    """A descriptor of a file that lies in memory, at its beginning; it stays open on exec."""
    memory = os.memfd_create("vllm-supervisor", 0)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(text.encode())
    os.lseek(memory, 0, os.SEEK_SET)
    return memory
