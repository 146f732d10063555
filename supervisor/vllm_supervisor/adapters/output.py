"""The engine's output: read without ever blocking the engine, classified, passed on to the journal.

Two threads. The reader empties both pipes in large pieces and gives them to a callback that
classifies; it never waits for anything but the pipes. The forwarder writes to our own stderr, may
be blocked by the journal for as long as it likes, and drops and counts when its queue is full.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping

PIPE_BYTES = 1 << 20
"""Size asked for each pipe: room for the engine while a piece is being classified."""

PIECE_BYTES = 1 << 16
"""Largest piece read at once: classified in well under 100 ms also where the CPU is shared with a load."""

QUEUE_BYTES = 16 << 20
"""What may wait for the journal before lines are dropped."""

LAST_WORDS_S = 4.0
"""On a busy machine what was printed before the end may lie in the pipe for longer than we await more; it holds the
cause. An orphan that never stops printing is left after this."""

Handler = Callable[[str, bytes], None]


def make_pipe() -> tuple[int, int]:
    """A pipe of `PIPE_BYTES` where the kernel allows it; both ends close on exec."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_end, write_end


class OutputReader:
    """Empties the engine's pipes in a thread of its own.

    Args:
        pipes: The stream's name and the read end of its pipe; the reader owns and closes them.
        handle: Called in the reader's thread with the stream and a piece of bytes; with an empty
            piece once when a stream has ended.
        done: Called once when all streams have ended or `stop` was asked for.
    """

    def __init__(self, pipes: Mapping[str, int], handle: Handler, done: Callable[[], None]) -> None:
        self.pipes = dict(pipes)
        self._handle = handle
        self._done = done
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stop_at: float | None = None
        self._detach = False
        self.longest_turn_s = 0.0
        """The longest time between two reads while data was waiting, in seconds."""
        self._thread = threading.Thread(target=self._run, name="engine-output", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        for descriptor in self.pipes.values():
            os.set_blocking(descriptor, False)
        self._thread.start()

    def finish(self, within_s: float) -> None:
        """Await more for at most `within_s` seconds, read all that is there, then end, though writers may live on."""
        self._stop_at = time.monotonic() + within_s
        self._nudge()

    def detach(self, timeout_s: float = 5.0) -> bool:
        """End at once and leave the pipes open, for another process image to read on."""
        self._detach = True
        self._nudge()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._wake_read, selectors.EVENT_READ, "")
        for stream, descriptor in self.pipes.items():
            selector.register(descriptor, selectors.EVENT_READ, stream)
        open_streams = len(self.pipes)
        while open_streams and not self._detach:
            timeout = None if self._stop_at is None else max(self._stop_at - time.monotonic(), 0.0)
            ready = selector.select(timeout)
            if not ready and self._stop_at is not None:
                break
            began = time.monotonic()
            # stderr first: a bar there was printed before the record on stdout that ends its phase.
            for key, _ in sorted(ready, key=lambda pair: str(pair[0].data)):
                if not key.data:
                    with contextlib.suppress(OSError):
                        os.read(self._wake_read, 64)
                    continue
                open_streams -= self._read(selector, key.fd, str(key.data))
            self.longest_turn_s = max(self.longest_turn_s, time.monotonic() - began)
            if self._stop_at is not None and time.monotonic() >= self._stop_at + LAST_WORDS_S:
                break
        selector.close()
        if not self._detach:
            for stream, descriptor in self.pipes.items():
                self._handle(stream, b"")
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._done()

    def _read(self, selector: selectors.BaseSelector, descriptor: int, stream: str) -> int:
        """Reads one piece; 1 when the stream has ended."""
        try:
            piece = os.read(descriptor, PIECE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            piece = b""
        if not piece:
            selector.unregister(descriptor)
            return 1
        self._handle(stream, piece)
        return 0


class Forwarder:
    """Writes lines to a descriptor in a thread of its own; drops and counts what does not fit."""

    def __init__(self, descriptor: int, *, limit_bytes: int = QUEUE_BYTES) -> None:
        self._descriptor = descriptor
        self._limit = limit_bytes
        self._queue: collections.deque[bytes] = collections.deque()
        self._waiting = 0
        self._condition = threading.Condition()
        self._closed = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="forward-output", daemon=True)
        self._thread.start()

    def put(self, data: bytes, lines: int = 1) -> None:
        """Queue `data`, which holds `lines` whole lines; dropped and counted when the queue is full."""
        with self._condition:
            if self._waiting + len(data) > self._limit:
                self.dropped += lines
                return
            self._queue.append(data)
            self._waiting += len(data)
            self._condition.notify()

    def close(self, within_s: float) -> None:
        """Write what waits, for at most `within_s` seconds."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(within_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if not self._queue:
                    return
                batch = b"".join(self._queue)
                self._queue.clear()
            view = memoryview(batch)
            while view:
                try:
                    view = view[os.write(self._descriptor, view[: 1 << 16]) :]
                except InterruptedError:
                    continue
                except BlockingIOError:
                    with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
                        selector.register(self._descriptor, selectors.EVENT_WRITE)
                        selector.select(1.0)
                except OSError:
                    with self._condition:
                        self.dropped += bytes(view).count(b"\n")
                    break
            with self._condition:
                self._waiting -= len(batch)
