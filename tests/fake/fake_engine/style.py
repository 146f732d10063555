"""How a line looks in a given version: who prints it, behind which prefix, as a record or bare."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

ESCAPES = {"cyan": "\x1b[1;36m", "off": "\x1b[0;0m"}


@dataclass(frozen=True)
class Line:
    """One thing that is printed.

    Attributes:
        phase: The phase that it belongs to.
        who: `api`, `core`, or a worker's rank as `w0`, `w1`, …
        text: The message; may hold newlines.
        src: `file.py:123` makes it a record of vLLM's logger (stdout); empty is a bare line (stderr).
        level: Of a record.
        stream: 1 or 2; 0 follows from `src`.
        gap: Seconds (of the load's own time) that pass before it.
        raw: The text is written byte for byte, newline and prefix included.
        shard: The number of the shard whose bar it is, or -1.
        server: It is one of uvicorn's lines.
    """

    phase: str
    who: str
    text: str
    src: str = ""
    level: str = "INFO"
    stream: int = 0
    gap: float = 0.0
    raw: bool = False
    shard: int = -1
    server: bool = False

    @property
    def fd(self) -> int:
        return self.stream or (1 if self.src else 2)


class Style:
    """The looks of one version."""

    def __init__(self, version: str, style: str, workers: int) -> None:
        major, minor = (int(part) for part in version.split(".")[:2])
        self.version = version
        self.minor = minor if major == 0 else 1000
        self.json = style == "json"
        self.wrapped = self.minor <= 30
        self.coloured = self.minor < 11 or version.startswith("0.11.0")
        self.workers = workers

    def name(self, who: str, *, early: bool = False) -> str:
        """The process name in a prefix; `early` is before the parallel groups exist."""
        if who == "api":
            return "" if self.minor < 10 or self.version.startswith("0.10.0") else "APIServer"
        if who == "core":
            if self.version.startswith("0.10.0"):
                return "EngineCore_0"
            return "EngineCore_DP0" if self.minor <= 16 else "EngineCore"
        rank = int(who[1:])
        if self.version.startswith("0.10.0"):
            return f"VllmWorker rank={rank}"
        return "Worker" if early or self.workers == 1 else f"Worker_TP{rank}"

    def render(self, line: Line, pid: int, *, early: bool = False) -> bytes:
        """The bytes of a line that process `pid` prints now."""
        if line.raw:
            text = line.text
            first = text.startswith("\rLoading") or (text.startswith("\rCapturing") and "| 0/" in text) or text == "\n"
            if self.wrapped and not self.json and first:
                text = self._prefix(line.who, pid, early=early) + text
            return text.encode("utf-8", "surrogateescape")
        if self.json and (line.src or line.server):
            return self._json(line, pid, early=early)
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = self._prefix(line.who, pid, early=early)
        if line.src:
            head = f"{line.level} {stamp} [{line.src}] "
            whole = prefix + head if self.wrapped or prefix else head
            return ("\r\n".join(whole + each for each in line.text.split("\n")) + "\n").encode()
        head = prefix if self.wrapped else ""
        return "".join(f"{head}{each}\n" for each in line.text.split("\n")).encode("utf-8", "surrogateescape")

    def _prefix(self, who: str, pid: int, *, early: bool) -> str:
        name = self.name(who, early=early)
        if not name:
            return ""
        prefix = f"({name} pid={pid})"
        if self.coloured:
            prefix = f"{ESCAPES['cyan']}{prefix}{ESCAPES['off']}"
        return prefix + " "

    def _json(self, line: Line, pid: int, *, early: bool) -> bytes:
        text = line.text.removeprefix("INFO:     ")
        values: dict[str, object] = {
            "asctime": time.strftime("%m-%d %H:%M:%S"),
            "levelname": line.level,
            "name": "uvicorn.error" if line.server else "vllm." + line.src.partition(".")[0],
            "processName": "MainProcess" if line.who == "api" else self.name(line.who, early=early),
            "process": pid,
            "message": text,
        }
        if not line.server:
            values["vllm_process_name"] = self.name(line.who, early=early)
        return json.dumps(values).encode() + b"\n"
