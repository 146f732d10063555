"""The control socket: a test drives the fake with one JSON object a line and gets one back.

{"do": "advance"}                     manual pace: print the next phase; answers when it is printed
{"do": "advance", "to": PHASE}        … up to the end of that phase ("ready": until it serves)
{"do": "finish"}                      … everything that is left
{"do": "resume"}                      go on after `cut_at`
{"do": "hang"} / {"do": "unhang"}     the engine stops making tokens; /health goes on
{"do": "set", "values": {KNOB: …}}    change live knobs
{"do": "emit", "text": T, "who": "api", "stream": 1}
{"do": "fault", "fault": {…}}         see faults.py
{"do": "die", "who": "main|core|w0", "signal": 9}
{"do": "exit", "code": 1}
{"do": "stats"}                       pids, mode, phase, counts
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any

LATER = object()
"""What a command returns when its answer comes later."""


class Control:
    """The listening end, served from the main loop."""

    def __init__(self, path: str, act: Callable[[dict[str, Any], socket.socket], Any]) -> None:
        self.act = act
        self.listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        self.listener.bind(path)
        self.listener.listen(8)
        self.buffers: dict[socket.socket, bytes] = {}

    def readers(self) -> list[socket.socket]:
        return [self.listener, *self.buffers]

    def handle(self, reader: socket.socket) -> None:
        if reader is self.listener:
            self.buffers[reader.accept()[0]] = b""
            return
        try:
            data = reader.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            del self.buffers[reader]
            reader.close()
            return
        *lines, self.buffers[reader] = (self.buffers[reader] + data).split(b"\n")
        for line in lines:
            try:
                result = self.act(json.loads(line), reader)
            except (ValueError, KeyError, IndexError, OSError) as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            if result is not LATER:
                answer(reader, result or {})


def answer(conn: socket.socket, value: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        conn.sendall(json.dumps(value).encode() + b"\n")
