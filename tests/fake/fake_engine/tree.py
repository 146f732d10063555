"""The engine core and its workers: real processes that print their own lines, step together and die as the real ones.

Main asks the core for a decoding step; the core asks each worker and answers when all did. So a
worker or a core that is stopped (SIGSTOP) hangs the engine exactly where it hangs in reality. The
death of a worker ends the core; the death of the core ends the workers (they hold a pipe of it); the
death of main ends nobody: the orphans stay.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from .script import Script
from .style import Line, Style
from .system import (
    Channel,
    Waker,
    disposition,
    keep_only,
    on_signals,
    pair,
    ready,
    run,
    segment,
    set_title,
    unlink,
    write,
)
from .worker import double_fork, worker

TITLE = "VLLM::EngineCore"


class Tree:
    """Main's view of the processes."""

    def __init__(self, script: Script, style: Style) -> None:
        self.style = style
        self.workers = style.workers
        self._talk, core_talk = pair()
        self._step, core_step = pair()
        ends = [pair() for _ in range(self.workers)]
        self._to_worker = [mine for mine, _ in ends]
        self.core_pid = os.fork()
        if not self.core_pid:
            run(lambda: Core(script, style, core_talk, core_step, [theirs for _, theirs in ends]).loop())
        for channel in (core_talk, core_step, *(theirs for _, theirs in ends)):
            channel.sock.close()
        self.core_fd = os.pidfd_open(self.core_pid)
        hello = self._talk.receive() or {}
        self.worker_pids: list[int] = hello.get("workers", [])
        self.segments: list[str] = hello.get("segments", [])
        self.grandchild: int | None = hello.get("grandchild")
        self.core_code: int | None = None

    def pid(self, who: str) -> int:
        return self.core_pid if who == "core" else self.worker_pids[int(who[1:])]

    def show(self, who: str, fd: int, data: bytes, wait: Callable[[Channel], None]) -> None:
        """Has a process print `data`; returns when it did, or is dead. `wait` returns when its answer is there."""
        channel = self._talk if who == "core" else self._to_worker[int(who[1:])]
        for start in range(0, len(data), 1 << 16):
            text = data[start : start + (1 << 16)].decode("latin-1")
            if channel.send({"do": "print", "fd": fd, "text": text}):
                wait(channel)
                channel.receive()

    def work(self, kind: str) -> None:
        for channel in self._to_worker:
            channel.ask({"do": "work", "kind": kind})

    def step(self) -> bool:
        """One decoding step of core and workers; False when the core is dead. Blocks when one of them is stopped."""
        return self._step.ask({"do": "step"}) is not None

    def core_is_dead(self) -> bool:
        """Reaps the core when it has ended."""
        if self.core_code is None:
            pid, status = os.waitpid(self.core_pid, os.WNOHANG)
            if pid:
                self.core_code = os.waitstatus_to_exitcode(status)
        return self.core_code is not None

    def end(self, patience: float) -> bool:
        """SIGTERM to the core, then SIGKILL to everybody, then the segments go; whether force was needed."""
        forced = False
        if not self.core_is_dead():
            os.kill(self.core_pid, signal.SIGTERM)
            until = time.monotonic() + patience
            while not self.core_is_dead() and time.monotonic() < until:
                ready([self.core_fd], until - time.monotonic())
            forced = not self.core_is_dead()
        if forced:
            for pid in (*self.worker_pids, self.core_pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            os.waitpid(self.core_pid, 0)
            self.core_code = -9
        unlink(self.segments)
        return forced


class Core:
    """The engine core's process."""

    def __init__(self, script: Script, style: Style, talk: Channel, step: Channel, worker_ends: list[Channel]) -> None:
        self.script, self.style, self.talk, self.step = script, style, talk, step
        keep_only([talk, step, *worker_ends])
        self.ended = False
        self.waker = Waker()
        on_signals(self._signalled, signal.SIGTERM, signal.SIGINT)
        if script.children_ignore_sigterm:
            disposition(signal.SIGTERM, signal.SIG_IGN)
        alive, lifeline = os.pipe()  # the workers see its end when this process is gone
        self.segments: list[str] = []
        self.kept = []
        if script.shm:
            for _ in range(style.workers + 1):
                path, mapped = segment()
                self.segments.append(path)
                self.kept.append(mapped)
        steps = [pair() for _ in range(style.workers)]
        self.workers = [mine for mine, _ in steps]
        self.pids: list[int] = []
        for rank in range(style.workers):
            pid = os.fork()
            if not pid:
                run(lambda rank=rank: worker(script, style, rank, (worker_ends[rank], steps[rank][1]), alive))
            self.pids.append(pid)
        keep_only([talk, step, self.waker, self.waker._other, lifeline, *self.workers])
        self.watch = {os.pidfd_open(pid): rank for rank, pid in enumerate(self.pids)}
        grandchild = double_fork() if script.double_fork else None
        set_title(TITLE)
        talk.send({"workers": self.pids, "segments": self.segments, "grandchild": grandchild})

    def _signalled(self, number: int) -> None:
        self.ended = True

    def loop(self) -> int:
        readers: list[Any] = [self.talk, self.step, self.waker, *self.watch]
        while not self.ended:
            for reader in ready(readers, None):
                if reader is self.waker:
                    self.waker.clear()
                elif isinstance(reader, int):
                    return self._worker_died(self.watch[reader])
                elif (asked := reader.receive()) is None:
                    readers.remove(reader)  # main is dead: nobody tells a core about that, it stays
                elif asked["do"] == "print":
                    write(asked["fd"], asked["text"].encode("latin-1"))
                    self.talk.send({})
                elif asked["do"] == "step" and (lost := self._step_workers()) is not None:
                    return self._worker_died(lost)
        self._end_workers()
        return 0

    def _step_workers(self) -> int | None:
        """Asks every worker for a step; the rank of one that died meanwhile."""
        waiting: list[Any] = [each for each in self.workers if each.send({})]
        while waiting and not self.ended:
            for reader in ready([*waiting, *self.watch, self.waker], None):
                if isinstance(reader, int):
                    return self.watch[reader]
                if reader is self.waker:
                    self.waker.clear()
                elif reader.receive() is not None:
                    waiting.remove(reader)
        if not self.ended:
            self.step.send({})
        return None

    def _worker_died(self, rank: int) -> int:
        _, status = os.waitpid(self.pids[rank], 0)
        code = os.waitstatus_to_exitcode(status)
        self.pids[rank] = 0
        pid = os.getpid()
        texts = (
            (
                f"Worker proc VllmWorker-{rank} died unexpectedly (exit code: {code}), shutting down executor.",
                "multiproc_executor.py:315",
            ),
            ("EngineCore encountered a fatal error.\nTraceback (most recent call last):", "core.py:1512"),
            ("RuntimeError: Executor failed.", "core.py:1512"),
        )
        for text, src in texts:
            write(1, self.style.render(Line("", "core", text, src, "ERROR"), pid))
        self._end_workers()
        write(2, b"Process EngineCore:\nTraceback (most recent call last):\nRuntimeError: Executor failed.\n")
        return 1

    def _end_workers(self) -> None:
        for pid, number in [(pid, number) for number in (signal.SIGTERM, signal.SIGKILL) for pid in self.pids]:
            if pid:
                os.kill(pid, number)
            if number == signal.SIGTERM and pid == self.pids[-1]:
                ready(list(self.watch), 0.05)
        for pid in filter(None, self.pids):
            os.waitpid(pid, 0)
        unlink(self.segments)
