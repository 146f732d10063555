"""One worker of the engine: a real process that prints, steps and ends with its core."""

from __future__ import annotations

import os
import signal
from typing import Any

from .script import Script
from .style import Style
from .system import Channel, Work, disposition, keep_only, ready, set_title, write

TITLE = "VLLM::Worker"


def worker(script: Script, style: Style, rank: int, channels: tuple[Channel, Channel], alive: int) -> int:
    """A worker's process: prints, steps, and ends with the core."""
    disposition(signal.SIGTERM, signal.SIG_IGN if script.children_ignore_sigterm else signal.SIG_DFL)
    disposition(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    talk, step = channels
    keep_only([talk, step, alive])
    set_title(TITLE + (f"_TP{rank}" if style.workers > 1 else ""))
    work = Work()
    readers: list[Any] = [talk, step, alive]
    while True:
        for reader in ready(readers, work.turn()):
            if reader is alive:
                return 0
            asked = reader.receive()
            if asked is None:
                readers.remove(reader)
                continue
            if asked.get("do") == "print":
                write(asked["fd"], asked["text"].encode("latin-1"))
            elif asked.get("do") == "work":
                work.kind = asked["kind"]
            reader.send({})


def double_fork() -> int:
    """A process that left group and session, and whose parent is gone; it sleeps for good. Its pid."""
    out, into = os.pipe()
    if not (middle := os.fork()):
        os.setsid()
        if last := os.fork():
            os.write(into, str(last).encode())
            os._exit(0)
        signal.set_wakeup_fd(-1)
        disposition(signal.SIGTERM, signal.SIG_DFL)
        keep_only([])
        while True:
            signal.pause()
    os.waitpid(middle, 0)
    found = int(os.read(out, 32))
    os.close(out)
    os.close(into)
    return found
