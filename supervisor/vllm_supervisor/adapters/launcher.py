"""Starting the engine's process: default signals, its own session, no descriptor of ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

OOM_SCORE = 200
"""The engine is to be killed by the kernel before its supervisor."""


class Engine:
    """The engine's main process, and how it ended.

    Args:
        pid: Its process id; a child of ours, also after a re-execution of the supervisor.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def watch(self, loop: asyncio.AbstractEventLoop, ended: Callable[[int], None]) -> None:
        """Call `ended` with the exit status (negative: the signal's number) once, when it ends."""

        def readable() -> None:
            loop.remove_reader(self._pidfd)
            self.status = self._collect()
            ended(self.status)

        loop.add_reader(self._pidfd, readable)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop watching, for a re-execution."""
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)

    def _collect(self) -> int:
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process only; False when it is gone (pidfd: never to a recycled pid)."""
        if self.status is not None:
            return False
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, number)
            return True
        return False


def launch(command: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int) -> Engine:
    """Start the engine; the write ends of its pipes are closed here.

    No code of ours runs between fork and exec, where threads make it dangerous: signals that we
    handle are reset to their default by exec itself, and `unblock_signals` has cleared the mask.

    Raises:
        OSError: the command cannot be executed; `errno` says why.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            start_new_session=True,
            close_fds=True,
        )
    finally:
        os.close(stdout)
        os.close(stderr)
    # The exit is collected through the pidfd; Popen must not do it a second time.
    process.returncode = 0
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(OOM_SCORE))
    return Engine(process.pid)


def unblock_signals() -> None:
    """Clear the signal mask that we inherited: a blocked SIGTERM would reach the engine (F9.18)."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
