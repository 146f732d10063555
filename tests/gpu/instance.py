"""One supervised engine of a proof: started as its user, with a notify socket of ours that notes every datagram."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from machine import Lab, own

ROWS = re.compile(r"^(vllm_supervisor_\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


class Instance:
    """A daemon and its engine.

    Attributes:
        notes: (monotonic time, sender's pid, pairs) of every datagram.
    """

    def __init__(
        self, lab: Lab, name: str, model: Path | str, *, port: int, tp: int, tables: dict[str, Any] | None = None,
        args: dict[str, Any] | None = None, env: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.lab, self.name, self.port, self.metrics_port, self.tp = lab, name, port, port + 1000, tp
        self.home = lab.directories(name)
        self.notes: list[tuple[float, int, dict[str, str]]] = []
        self.lines: list[tuple[float, str]] = []
        self.config = self.home / f"{name}.toml"
        engine = {
            "command": lab.engine, "model": str(model), "served_model_name": "kimi", "port": port,
            "device": lab.device, "overlay": "off",
            "args": {"tensor-parallel-size": tp, **lab.engine_args, **(args or {})},
            "env": {**lab.engine_environment(), **(env or {})},
        }  # fmt: skip
        tables = {"engine": engine, "metrics": {"listen": f"127.0.0.1:{self.metrics_port}"}, **(tables or {})}
        self.config.write_text("".join(table(key, value) for key, value in tables.items()))
        self.config.chmod(0o644)
        self.process: subprocess.Popen[bytes] | None = None
        self.began = self.exited = 0.0

    def start(self) -> Instance:
        path = self.home / "notify"
        path.unlink(missing_ok=True)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        path.chmod(0o777)
        threading.Thread(target=self._listen, daemon=True).start()
        command = self.lab.confined(
            [
                self.lab.python, "-m", "vllm_supervisor", "run", "--config", str(self.config),
                "--record", str(self.home / "state" / "events.jsonl"),
            ]
        )  # fmt: skip
        environment = {**self.lab.environment(self.name), "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "60000000"}
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=self.home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def _listen(self) -> None:
        while True:
            try:
                data, extra, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(12))
            except OSError:
                return
            now = time.monotonic()
            pid = int.from_bytes(extra[0][2][:4], "little") if extra else 0
            pairs = dict(line.split("=", 1) for line in data.decode(errors="replace").splitlines() if "=" in line)
            self.notes.append((now, pid, pairs))
            self.lab.out.line(
                "notify.jsonl",
                json.dumps({"t": round(now - self.lab.out.began, 3), "instance": self.name, "pid": pid, **pairs}),
            )

    def _read(self) -> None:
        assert self.process
        assert self.process.stdout
        for raw in self.process.stdout:
            now, text = time.monotonic(), raw.decode(errors="replace").rstrip("\n")
            self.lines.append((now, text))
            self.lab.out.line("logs.txt", f"{now - self.lab.out.began:8.3f} [{self.name}] {text[:2000]}")

    def _wait(self) -> None:
        assert self.process
        self.process.wait()
        self.exited = time.monotonic()

    # What is asked of it.

    def wait(self, what: str, fn: Any, timeout: float) -> Any:
        """Until `fn` is true; fails when the daemon ends, at the time-out, or with the call's time."""
        assert self.process
        until = time.monotonic() + min(timeout, max(self.lab.left(), 1.0))
        while True:
            value = fn()
            if value:
                return value
            if self.exited:
                last = [text for _, text in self.lines[-6:]]
                raise RuntimeError(f"{self.name} ended with {self.process.returncode} before {what}: {last}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name}: no {what} within {timeout:.0f} s: {self.status().get('status')}")
            time.sleep(0.05)

    def wait_ready(self, timeout: float) -> float:
        """When READY=1 came (monotonic)."""
        return float(self.wait("READY", lambda: next((at for at, _, p in self.notes if "READY" in p), None), timeout))

    def wait_exit(self, timeout: float) -> int | None:
        until = time.monotonic() + timeout
        while not self.exited:
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
        assert self.process
        return self.process.returncode

    def noticed(self, since: float) -> tuple[float, str] | None:
        """The first word after `since` that says that something is wrong: seconds, and the word."""
        for at, _, pairs in list(self.notes):
            text = pairs.get("STATUS", "")
            if at > since and (re.match(r"Degraded|Stopping|Failed|Hung|Draining", text) or "STOPPING" in pairs):
                return round(at - since, 3), text or "STOPPING=1"
        return None

    def get(self, path: str, timeout: float = 10.0, port: int | None = None) -> bytes:
        link = http.client.HTTPConnection("127.0.0.1", port or self.metrics_port, timeout=timeout)
        with contextlib.closing(link):
            link.request("GET", path)
            return link.getresponse().read()

    def status(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.get("/status", 5)))
        except (OSError, ValueError, http.client.HTTPException):
            return {}

    def metrics(self) -> dict[tuple[str, str], float]:
        """Our own series by name and labels."""
        page = self.get("/metrics").decode()
        return {(name, labels): float(value) for name, labels, value in ROWS.findall(page)}

    def engine_pids(self) -> dict[int, str]:
        found = self.status().get("engine", {}).get("processes", {})
        return {int(pid): role for pid, role in found.items()}

    def daemon_pids(self) -> list[int]:
        """The daemon and its NVML helper."""
        assert self.process
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        helpers = [int(pid) for pid in children if b"nvml" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return [self.process.pid, *helpers]

    def segments(self, pids: list[int]) -> set[str]:
        """Shared-memory files that the engine has mapped."""
        found = set()
        for pid in pids:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                    if "/dev/shm/" in line:
                        found.add(line.split(maxsplit=5)[5].removesuffix(" (deleted)"))
        return found

    def verb(self, *words: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Another verb of the command line, as the service's user."""
        return subprocess.run(
            self.lab.confined([self.lab.python, "-m", "vllm_supervisor", *words], seccomp=False),
            capture_output=True, text=True, timeout=timeout, check=False, cwd=self.home,
            env=self.lab.environment(self.name),
        )  # fmt: skip

    def sigterm(self) -> float:
        assert self.process
        os.kill(self.process.pid, signal.SIGTERM)
        return time.monotonic()

    def close(self) -> None:
        """Leave nothing of this instance behind, whatever happened."""
        if self.process and not self.exited:
            pids = self.engine_pids()
            for pid in (self.process.pid, *pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait_exit(10)
        with contextlib.suppress(AttributeError):
            self._sock.close()


def table(name: str, values: dict[str, Any]) -> str:
    """One TOML table with its sub-tables; JSON's scalars and lists are TOML's."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in values.items() if isinstance(value, dict)}
    text = f"[{name}]\n" + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in plain.items())
    return text + "".join(table(f"{name}.{key}", value) for key, value in nested.items())


__all__ = ["Instance", "own", "table"]
