"""The datagram socket that systemd would hold, for reading what a daemon tells it."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from process.waiting import tail

Message = tuple[float, dict[str, str]]


class NotifySocket:
    """The datagram socket that systemd would hold.

    Attributes:
        messages: What came, each with the monotonic time of its arrival; `pids` the senders.
    """

    def __init__(self, path: Path, *logs: Path) -> None:
        self.path, self.logs = path, logs
        self.messages: list[Message] = []
        self.pids: list[int] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._new = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                data, extra, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(12))
            except OSError:
                return
            if data == b"CLOSE=1":
                return
            pairs = dict(line.split("=", 1) for line in data.decode("ascii").splitlines() if "=" in line)
            with self._new:
                self.messages.append((time.monotonic(), pairs))
                self.pids.append(int.from_bytes(extra[0][2][:4], sys.byteorder) if extra else 0)
                self._new.notify_all()

    def wait_for(
        self, wanted: str | Callable[[dict[str, str]], Any], timeout: float = 15.0, *, after: int = 0
    ) -> Message:
        """The first message from number `after` on that holds the key `wanted`, or for which `wanted` is true."""
        predicate = (lambda pairs: wanted in pairs) if isinstance(wanted, str) else wanted
        until = time.monotonic() + timeout
        with self._new:
            while True:
                for message in self.messages[after:]:
                    if predicate(message[1]):
                        return message
                left = until - time.monotonic()
                if left <= 0 or not self._new.wait(left):
                    seen = "\n".join(f"{at:.3f} {pairs}" for at, pairs in self.messages)
                    raise AssertionError(
                        f"no such notification within {timeout:g} s; seen:\n{seen}\n{tail(*self.logs)}"
                    )

    def having(self, key: str) -> list[Message]:
        """All messages so far that hold `key`."""
        return [message for message in list(self.messages) if key in message[1]]

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"CLOSE=1", str(self.path))
        self._thread.join(5)
        self._sock.close()
