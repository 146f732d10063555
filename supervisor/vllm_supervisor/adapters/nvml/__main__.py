"""The helper process: a thread a board, a report a period, until reader or parent is gone.

It ends as well whenever NVML has to be initialised anew (driver reloaded, library replaced); the
parent starts it again, and a fresh process has the fresh library.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time

from .boards import ANEW, Board, XidEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PERIOD = 1.0
"""Seconds between two reports."""
PATIENCE = 0.5
"""Seconds that a report waits for a board whose answer is late."""
STUCK_AFTER = 3.0
"""Seconds after which a board whose call has not returned counts as stuck."""
BARREN_ROUNDS = 3
"""Rounds without any reading and without a lost board after which NVML is initialised anew."""
EXIT_ANEW = 3
PR_SET_PDEATHSIG = 1


class Worker(threading.Thread):
    """Reads one thing again and again; a call that does not return holds up this thread only."""

    def __init__(self, read: Callable[[], tuple[str, Any]], who: dict[str, Any], done: threading.Condition) -> None:
        super().__init__(daemon=True)
        self.reading, self.who, self.done = read, who, done
        self.go = threading.Event()
        self.busy_since: float | None = None
        self.result: tuple[str, Any] | None = None

    def run(self) -> None:
        """Wait to be asked, read, say so."""
        while True:
            self.go.wait()
            self.go.clear()
            try:
                result = self.reading()
            except Exception as error:  # noqa: BLE001 - whatever a binding raises, the report says it
                code = getattr(error, "value", None)
                result = ("anew" if code in ANEW else "lost", {**self.who, "reason": str(error)})
            with self.done:
                self.result, self.busy_since = result, None
                self.done.notify()

    def ask(self, now: float) -> bool:
        """Ask for a reading; false while the last one has not come back."""
        if self.busy_since is not None:
            return False
        self.busy_since = now
        self.go.set()
        return True

    def answer(self, now: float) -> tuple[str, Any] | None:
        """The reading; a late one is the last again, until it counts as stuck."""
        if self.busy_since is not None and now - self.busy_since > STUCK_AFTER:
            return "lost", {**self.who, "reason": "stuck"}
        return self.result


def report(**fields: Any) -> bytes:
    """One line."""
    return json.dumps({"at": time.monotonic(), "unix": time.time(), **fields}, separators=(",", ":")).encode() + b"\n"


def say(line: bytes) -> None:
    """Write a line to the reader; it is waited for if it is slow."""
    while line:
        line = line[os.write(1, line) :]


def one_round(boards: list[Worker], events: Worker, done: threading.Condition, patience: float) -> dict[str, Any]:
    """Ask all, wait for those that were free, and put the answers together."""
    start = time.monotonic()
    found: dict[str, Any] = {"samples": [], "lost": [], "anew": [], "xid_events": []}
    with done:
        found["xid_events"] += told(events)  # of the last round, if it was late
        asked = [worker for worker in (*boards, events) if worker.ask(start)]
        done.wait_for(lambda: all(worker.busy_since is None for worker in asked), patience)
        now = time.monotonic()
        for worker in boards:
            kind, value = worker.answer(now) or ("lost", {**worker.who, "reason": "no answer yet"})
            found[kind].append(value)
        found["xid_events"] += told(events)
    return found


def told(events: Worker) -> list[Any]:
    """The events that came and were not told yet; each is told once."""
    result, events.result = events.result, None
    return list(result[1]) if result and result[0] == "xid_events" else []


def sample(nv: Any, period: float) -> str:
    """Report each period until NVML has to be initialised anew; the reason why."""
    nv.nvmlInit()
    done = threading.Condition()
    boards = [Board(nv, index) for index in range(nv.nvmlDeviceGetCount())]
    workers = [Worker(board.read, board.identity, done) for board in boards]
    events = Worker(XidEvents(nv, len(boards)).read, {}, done)
    for worker in (*workers, events):
        worker.start()
    reader = select.poll()
    reader.register(1, 0)  # no events asked for: it wakes only when the pipe has lost its reader
    barren, due, patience = 0, time.monotonic(), STUCK_AFTER  # the first readings are slow
    while True:
        found = one_round(workers, events, done, patience)
        patience = PATIENCE
        if anew := found.pop("anew"):
            return str(anew[0]["reason"])
        say(report(ok=True, **found))
        hopeless = all(one["reason"] not in {"lost", "stuck"} for one in found["lost"]) and not found["samples"]
        barren = barren + 1 if hopeless else 0
        if barren >= BARREN_ROUNDS:
            return "; ".join(sorted({one["reason"] for one in found["lost"]})) or "NVML sees no GPU"
        due = max(due + period, time.monotonic())
        if reader.poll(max(0.0, due - time.monotonic()) * 1000):
            return ""


def main(arguments: list[str]) -> int:
    """Arguments: the parent's pid, and the period in seconds."""
    parent, period = int(arguments[0]), float(arguments[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be noticed
        return 0
    try:
        import pynvml

        problem = sample(pynvml, period)
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - one sentence in the report, whatever it was
        problem = f"NVML: {error}"
    if problem:
        say(report(ok=False, error=problem))
    return EXIT_ANEW if problem else 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # a thread that is stuck in the driver must not hold us
