"""Main's waiting: everything that may happen meanwhile (signals, commands, deaths, deadlines) is handled here."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from .control import Control
from .script import Script
from .style import Line, Style
from .system import Waker, disposition, on_signals, read_empty, ready, unlink, write
from .tree import Tree

INTERRUPTED = 'Traceback (most recent call last):\n  File "/opt/vllm/bin/vllm", line 8, in <module>\n    sys.exit(main())\nKeyboardInterrupt: terminated'
FAILED = (
    'Traceback (most recent call last):\n  File "/opt/vllm/bin/vllm", line 8, in <module>\n    sys.exit(main())\n'
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': %s}"
)


class Loop:
    """Mode, deadlines and signals of the main process.

    Modes: imports (a SIGTERM kills), config (it interrupts), loading (the first one is lost),
    ready (it drains), stopping (it is ignored).
    """

    def __init__(self, script: Script, style: Style) -> None:
        self.script, self.style = script, style
        self.mode = "imports"
        self.phase = "launching"
        self.tree: Tree | None = None
        self.control: Control | None = None
        self.waker: Waker | None = None
        self.signals: list[int] = []
        self.exit_deadline: float | None = None
        self.interrupt_deadline: float | None = None
        self.first_term: float | None = None
        self.interrupt_after_load = False
        self.stop_wanted = False
        self.engine_lost_at: float | None = None

    def take_signals(self) -> None:
        """From here on SIGTERM and SIGINT are heard; before, the kernel's default holds."""
        self.waker = Waker()
        if self.script.ignore_sigterm:
            disposition(signal.SIGTERM, signal.SIG_IGN)
        else:
            on_signals(self.signals.append, signal.SIGTERM)
        on_signals(self.signals.append, signal.SIGINT)

    def print(self, line: Line, *, early: bool = False) -> None:
        pid = os.getpid() if line.who == "api" or self.tree is None else self.tree.pid(line.who)
        self.show(line.who, line.fd, self.style.render(line, pid, early=early))

    def show(self, who: str, fd: int, data: bytes) -> None:
        while self.script.in_order and not read_empty(3 - fd):
            self.wait(0.001)
        if who == "api" or self.tree is None:
            write(fd, data)
        else:
            self.tree.show(who, fd, data, self.wait_readable)

    def wait(self, seconds: float | None) -> None:
        """Handles what happens for that long; None waits until somebody calls an end."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            self.check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            self._turn([], left)

    def wait_until(self, done: Any, seconds: float | None = None) -> bool:
        until = None if seconds is None else time.monotonic() + seconds
        while not done():
            self.check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not done():
                self._turn([], min(0.01, left) if left is not None else None)
        return True

    def wait_readable(self, channel: Any) -> None:
        while channel not in self._turn([channel], None):
            self.check()

    def _turn(self, extra: list[Any], timeout: float | None) -> list[Any]:
        readers = list(extra)
        if self.waker:
            readers.append(self.waker)
        if self.control:
            readers += self.control.readers()
        if self.tree and self.tree.core_code is None:
            readers.append(self.tree.core_fd)
        for deadline in (self.exit_deadline, self.interrupt_deadline, self.engine_lost_at):
            if deadline is not None:
                left = max(0.0, deadline - time.monotonic())
                timeout = left if timeout is None else min(timeout, left)
        found = ready(readers, timeout)
        for reader in found:
            if reader is self.waker:
                self.waker.clear()
            elif self.control and reader in self.control.readers():
                self.control.handle(reader)
        return found

    def check(self) -> None:
        """Acts on what has happened."""
        now = time.monotonic()
        while self.signals:
            self._signal(self.signals.pop(0), now)
        if self.interrupt_deadline is not None and now >= self.interrupt_deadline:
            self.interrupted()
        if self.exit_deadline is not None and now >= self.exit_deadline:
            self.exit_deadline = None
            self.exit(self.script.exit_code)
        if self.tree and self.tree.core_is_dead() and self.mode != "stopping":
            self._core_died(now)

    def _signal(self, number: int, now: float) -> None:
        if self.mode == "stopping":
            return
        if self.mode == "ready":
            self.stop_wanted = True
            return
        if number == signal.SIGINT:  # asyncio only cancels the task, which takes effect when the load is over
            self.interrupt_after_load = True
        elif self.mode == "config":
            self.interrupt_deadline = now + self.script.term_delay_s
        elif self.first_term is None:
            self.first_term = now  # swallowed without a word, and with it the watch over the engine's start
        elif now - self.first_term >= self.script.second_term_gap_s:
            self.interrupt_deadline = now + self.script.term_delay_s

    def _core_died(self, now: float) -> None:
        if self.mode == "ready":
            if self.engine_lost_at is None:
                self.engine_lost_at = now + self.script.death_poll_s
                self.engine_died()
            elif now >= self.engine_lost_at:
                self.stop(0)
        elif self.first_term is None:
            self.print(Line(self.phase, "api", FAILED % (self.tree.core_code if self.tree else 1)))
            self.exit(1)
        else:  # nobody watches any more: the real one sits in a poll of 600 s
            self.mode = "stranded"
            while True:
                self._turn([], None)
                for number in self.signals:
                    if number == signal.SIGTERM:
                        self.interrupted()
                self.signals.clear()
                if self.exit_deadline is not None and time.monotonic() >= self.exit_deadline:
                    self.exit(self.script.exit_code)

    def engine_died(self) -> None:
        """Called once when the core is dead and the server is up."""

    def stop(self, code: int) -> None:
        """Ends the server in its orderly way."""
        self.exit(code)

    def interrupted(self) -> None:
        """A KeyboardInterrupt that nobody caught: its traceback, and death by SIGINT."""
        self.print(Line(self.phase, "api", INTERRUPTED))
        self.exit(-signal.SIGINT)

    def exit(self, code: int) -> None:
        """Ends with all that is ours gone; a negative code is a death by that signal."""
        self.mode = "stopping"
        if self.tree and code != -signal.SIGKILL:
            self.tree.end(0.5)
            unlink(self.tree.segments)
        if code < 0:
            if -code != signal.SIGKILL:
                disposition(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
