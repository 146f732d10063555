"""What a process of the fake asks of the kernel: writes, titles, wake-ups, packets, shared memory."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import stat
import termios
import time
from collections.abc import Callable
from typing import Any


def write(fd: int, data: bytes) -> None:
    """Writes all of `data`; blocks while the reader is slow, gives up when it has gone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return


def read_empty(fd: int) -> bool:
    """Whether everything in a pipe was read; so it is of what is no pipe."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return True
    held = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, held)
    return not held[0]


def set_title(title: str) -> None:
    """Does what setproctitle does: comm, argv in place, and the environment wiped unless SPT_NOENV is set."""
    with open("/proc/self/comm", "w") as file:  # noqa: PTH123
        file.write(title[:15])
    with open("/proc/self/stat") as file:  # noqa: PTH123
        stat = file.read().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(each) for each in stat[45:49])
    with open("/proc/self/mem", "r+b", buffering=0) as file:  # noqa: PTH123
        room = arg_end - arg_start
        file.seek(arg_start)
        file.write(title.encode()[: room - 1].ljust(room, b"\0"))
        if not os.environ.get("SPT_NOENV"):
            file.seek(env_start)
            file.write(b"\0" * (env_end - env_start))


class Waker:
    """Makes a signal end a select, and tells which signals came."""

    def __init__(self) -> None:
        self.end, other = socket.socketpair()
        self.end.setblocking(False)
        other.setblocking(False)
        self._other = other
        signal.set_wakeup_fd(other.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self.end.fileno()

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.end.recv(512)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._other.send(b"\0")


class Channel:
    """One end of a pair of sockets that carries one JSON value a packet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, value: dict[str, Any]) -> bool:
        """False when the other end has gone."""
        try:
            self.sock.send(json.dumps(value).encode())
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next value; None when the other end has gone."""
        try:
            data = self.sock.recv(1 << 18)
        except OSError:
            return None
        return json.loads(data) if data else None

    def ask(self, value: dict[str, Any]) -> dict[str, Any] | None:
        return self.receive() if self.send(value) else None


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(other)


def run(body: Any) -> None:
    """Runs a child's body and never returns into the parent's code."""
    code = 1
    try:
        code = body() or 0
    finally:
        os._exit(code)


def keep_only(keep: list[Any]) -> None:
    """Closes every descriptor but the standard ones and `keep`: the real children are spawned, not forked."""
    wanted = {0, 1, 2} | {each if isinstance(each, int) else each.fileno() for each in keep}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


def segment() -> tuple[str, mmap.mmap]:
    """A shared-memory segment as multiprocessing names them, mapped; 1 MiB, sparse."""
    path = f"/dev/shm/psm_{os.urandom(4).hex()}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.ftruncate(fd, 1 << 20)
    mapped = mmap.mmap(fd, 1 << 20)
    mapped[0] = 1
    os.close(fd)
    return path, mapped


def unlink(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108


class Work:
    """What a worker does while it is silent: burn CPU, read files, or grow."""

    def __init__(self) -> None:
        self.kind = ""
        self._kept: list[bytes] = []

    def turn(self) -> float | None:
        """Does a bit of it; the seconds until the next bit, None for never."""
        if self.kind == "spin":
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                pass
            return 0.0
        if self.kind == "read":
            # Every interpreter has it; the interpreter's own file is small where libpython is shared.
            with open("/dev/zero", "rb") as file:  # noqa: PTH123
                file.read(1 << 20)
            return 0.05
        if self.kind == "grow" and len(self._kept) < 64:
            self._kept.append(bytes(bytearray(b"\1") * (1 << 20)))
            return 0.05
        return None


def ready(readers: list[Any], timeout: float | None) -> list[Any]:
    """The readers that have something to read."""
    poll = select.poll()
    by_fd = {each if isinstance(each, int) else each.fileno(): each for each in readers}
    for fd in by_fd:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    return [by_fd[fd] for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]


def on_signals(action: Callable[[int], None], *numbers: int) -> None:
    for number in numbers:
        disposition(number, lambda got, _frame: action(got))


def disposition(number: int, handler: Any) -> None:
    """signal.signal, held back from the signal itself meanwhile.

    One that comes just as its handler makes way for SIG_DFL or SIG_IGN is dropped by Python, and the
    traceback of "Signal 15 ignored due to race condition" lands between the engine's lines.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        signal.signal(number, handler)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
