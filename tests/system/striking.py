"""Faults for a service on a machine: signals at a stated phase, floods, full disks, a journal that stands still."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from system.service import Service

STATE = "/var/lib/vllm-supervisor/kimi"
WAITER = """
import json, subprocess, sys, time, urllib.request
wanted, until = sys.argv[1].split(","), time.monotonic() + float(sys.argv[2])
failed_at, looked_at, shown = None, 0.0, "nothing"
while time.monotonic() < until:
    try:
        status = json.load(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[3]}/status", timeout=2))
    except OSError:
        status = dict()
    shown = status.get("phase", shown)
    if status.get("phase") in wanted:
        print(json.dumps(status))
        sys.exit(0)
    if status.get("phase") == sys.argv[5]:
        sys.exit(f"never in {sys.argv[1]}: it is {shown}")
    now = time.monotonic()
    if not status and now - looked_at > 0.5:
        looked_at = now
        failed = subprocess.run(["systemctl", "is-failed", "--quiet", sys.argv[4]]).returncode == 0
        failed_at = (failed_at or now) if failed else None
        if failed_at and now - failed_at > 3.0:
            sys.exit(f"never in {sys.argv[1]}: {sys.argv[4]} has failed, {shown} was seen last")
    time.sleep(0.01)
sys.exit(f"never in {sys.argv[1]}, {shown} was seen last")
"""
"""Waits for a phase; a unit that stays failed will not come to it: systemd starts no such unit by itself. The last
argument is a phase that lies behind all of them, or nothing."""


@dataclass
class Strikes:
    """What was struck, and what came of it.

    Attributes:
        rows: (fault, phase, what came of it, seconds), for the report.
    """

    service: Service
    rows: list[tuple[str, str, str, float]] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        """GET /status; {} while nobody answers."""
        code, body = self.service.get("/status")
        return dict(json.loads(body)) if code == 200 else {}

    def reach(self, *phases: str, timeout: float) -> dict[str, Any]:
        """The status at the first sight of one of the phases; looks a hundred times a second, inside the machine."""
        behind = "" if {"ready", "draining", "stopping"} & set(phases) else "ready"
        where = [str(self.service.metrics_port), self.service.unit, behind]
        command = ["/usr/bin/python3", "-c", WAITER, ",".join(phases), str(timeout), *where]
        done = self.service.machine.run(command, check=False, timeout=timeout + 30)
        assert done.returncode == 0, f"{done.stderr}\n{self.service.journal(80)}"
        return dict(json.loads(done.stdout))

    def pids(self, status: dict[str, Any], who: str) -> list[str]:
        """The pids of a part of the engine, as the status names them."""
        if who == "supervisor":
            return [self.service.show("MainPID")["MainPID"]]
        if who == "api-server":
            return [str(status["engine"]["pid"])]
        role = {"engine-core": "engine-core"}.get(who, "worker")
        found = sorted((pid for pid, each in status["engine"]["processes"].items() if each == role), key=int)
        return found if who == "all-workers" else found[-1:]

    def signal(self, status: dict[str, Any], who: str, name: str) -> float:
        """Send a signal to a part of the engine; when that was."""
        pids = self.pids(status, who) or self.pids(self.status(), who)
        assert pids, status
        self.service.machine.run(["kill", f"-{name}", *pids], check=False)
        return time.monotonic()

    def restarts(self) -> int:
        """How often systemd has started the service again."""
        return int(self.service.show("NRestarts")["NRestarts"])

    def ends(self, before: int, timeout: float) -> str:
        """The sentence of the start that ended, once systemd has begun the next one."""
        self.service.wait("systemd starts it again", lambda: self.restarts() > before, timeout)
        return self.last_end()

    def last_end(self) -> str:
        """The last `… (exit N)` in the journal."""
        text = f"journalctl -u {self.service.unit} -o cat --no-pager | grep -a '^vllm-supervisor: .*(exit ' | tail -n 1"
        return self.service.machine.run(text).stdout.strip()

    def end_of(self, began_at: float | None) -> dict[str, Any]:
        """What the history says of the start that began then, or of the newest one; {} while it has no end."""
        command = ["vllm-supervisor", "history", self.service.name, "--json", "--last", "50"]
        rows = [json.loads(line) for line in self.service.machine.run(command, check=False).stdout.splitlines()]
        found = [row for row in rows if began_at is None or row["began_at"] == began_at]
        return found[-1] if found and found[-1].get("ended_at") else {}

    def gone(self, status: dict[str, Any]) -> None:
        """Nothing of the engine that the status shows lives any more."""
        pids = [*status["engine"]["processes"], str(status["engine"]["pid"])]
        for pid in pids:
            text = f"grep -qa {self.service.unit}.service /proc/{pid}/cgroup && grep -qaE 'vllm|VLLM' /proc/{pid}/cmdline && echo {pid}"
            assert not self.service.machine.run(text, check=False).stdout.strip(), f"{pid} of {pids} is left"

    def fatal(
        self,
        fault: str,
        phases: tuple[str, ...],
        who: str,
        signal: str,
        *reasons: str,
        timeout: float = 600.0,
        within: float = 60.0,
    ) -> None:
        """Strike in a phase; the start must end with one of `reasons`, and systemd must start the next one.

        Without reasons it has to end without a word.
        """
        status = self.reach(*phases, timeout=timeout)
        before = self.restarts()
        at = self.signal(status, who, signal)
        sentence = self.ends(before, within)
        took = time.monotonic() - at
        if reasons:
            assert any(f"{reason}:" in sentence for reason in reasons), f"{sentence}\n{self.service.journal(60)}"
        self.gone(status)
        # Without a word of its own the journal's last end is that of the start before.
        end = sentence.partition("(exit ")[2].rstrip(")") if reasons else "swept by systemd, started again"
        self.rows.append((fault, status["phase"], end, took))

    def output(self, status: dict[str, Any], text: str) -> None:
        """Run a shell command whose output becomes output of the engine."""
        pid = self.pids(status, "api-server")[0]
        self.service.machine.run(f"{{ {text}; }} > /proc/{pid}/fd/1", timeout=400)
