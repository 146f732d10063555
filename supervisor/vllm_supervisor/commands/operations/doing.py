"""The steps that act on the service itself: check, stop, start, restart, wait, smoke."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.check.finding import Level
from vllm_supervisor.core.words import duration

from .served import Served, StepError, check

if TYPE_CHECKING:
    from vllm_supervisor.adapters.steps_journal import StepsJournal

    from .runner import Say

EVERY_S = 0.2
STOP_LIMIT_S = 1800.0
SMOKE_LIMIT_S = 900.0
CREDENTIALS = Path("/etc/credstore")
RUNNING = frozenset({"active", "activating", "reloading"})


class Doing:
    """Acts on one instance.

    Args:
        it: The instance.
        journal: Where facts are kept for whoever goes on after us.
        attempts: After so many failed starts in a row a wait gives up; None leaves that to the retries.
        alone: Refuse, too, what would hold its GPUs after its end.
    """

    def __init__(self, it: Served, journal: StepsJournal, *, attempts: int | None = None, alone: bool = False) -> None:
        self.it = it
        self.journal = journal
        self.attempts = attempts
        self.alone = alone

    def check(self, _: str, say: Say, command: str | None = None) -> str:
        """Refuse what the next start would refuse."""
        found, _view, _seen = check(self.it, command, alone=self.alone)
        for finding in found:
            say(str(finding))
        refused = [finding for finding in found if finding.level is Level.REFUSE]
        if refused:
            raise StepError(f"{refused[0].seen}; {refused[0].remedy}")
        return f"nothing speaks against a start, {len(found)} warned" if found else "nothing speaks against a start"

    def stop(self, _: str, say: Say) -> str:
        """Drain and stop; returns when nothing of it runs."""
        if self.journal.fact("ran") is None:
            self.journal.keep_fact("ran", self.it.show("ActiveState").get("ActiveState") in RUNNING)
        began = time.monotonic()
        self.it.act("stop")
        while True:
            shown = self.it.show("ActiveState", "StatusText", "Job", "Result")
            if shown["ActiveState"] in {"inactive", "failed"} and shown.get("Job", "0") in {"", "0"}:
                took = duration(time.monotonic() - began)
                clean = shown.get("Result", "success") == "success"
                return f"stopped after {took}" + ("" if clean else f", not cleanly ({shown['Result']})")
            say(shown.get("StatusText", ""))
            if time.monotonic() - began > STOP_LIMIT_S:
                raise StepError(f"{self.it.unit} has not stopped for {duration(STOP_LIMIT_S)}")
            time.sleep(EVERY_S)

    def start(self, _: str, __: Say) -> str:
        """Start it when it ran before."""
        if self.journal.fact("ran") is False:
            return "it did not run before, so it stays stopped"
        self.it.act("start")
        return ""

    def restart(self, step: str, say: Say) -> str:
        """Drain, stop and start as one job of systemd, so that the start follows even when we are gone."""
        fact = f"{step}.invocation"
        before = self.journal.fact(fact)
        if before is None:
            before = self.it.show("InvocationID").get("InvocationID", "")
            self.journal.keep_fact(fact, before)
        shown = self.it.show("InvocationID", "Job")
        if shown.get("InvocationID", "") == before and shown.get("Job", "0") in {"", "0"}:
            self.it.act("restart")
        while True:
            shown = self.it.show("InvocationID", "ActiveState", "StatusText", "Job")
            if shown.get("InvocationID", "") not in {"", before}:
                return "the new process has begun"
            if shown["ActiveState"] in {"inactive", "failed"} and shown.get("Job", "0") in {"", "0"}:
                raise StepError(f"{self.it.unit} was stopped by somebody else")
            say(shown.get("StatusText", ""))
            time.sleep(EVERY_S)

    def wait(self, _: str, say: Say) -> str:
        """Until it can answer; a failed start is one sentence with its cause."""
        if self.journal.fact("ran") is False:
            return "it did not run before, so it stays stopped"
        began = time.monotonic()
        while True:
            shown = self.it.show("ActiveState", "StatusText", "Job", "NRestarts")
            idle = shown.get("Job", "0") in {"", "0"}
            if shown["ActiveState"] == "active":
                return f"ready after {duration(time.monotonic() - began)}"
            if shown["ActiveState"] in {"failed", "inactive"} and idle:
                raise StepError(self.cause())
            if self.attempts is not None and int(shown.get("NRestarts") or 0) >= self.attempts:
                raise StepError(self.cause())
            say(shown.get("StatusText", ""))
            time.sleep(EVERY_S)

    def cause(self) -> str:
        """Why the last start failed, from the history."""
        ended = [row for row in self.it.history() if row.get("outcome") == "failed"]
        if not ended:
            return f"{self.it.unit} ended without a word in its history; see `journalctl -u {self.it.unit}`"
        row = ended[-1]
        kept = f"; incident: {row['incident']}" if row.get("incident") else ""
        return f"{row.get('sentence') or row.get('reason') or 'it ended without a word'}{kept}"

    def smoke(self, _: str, say: Say) -> str:
        """The question with a known answer, by the verb of that name."""
        if self.journal.fact("ran") is False:
            return "it did not run before, so it stays stopped"
        env = dict(os.environ)
        key = CREDENTIALS / f"{self.it.name}.api-key"
        with contextlib.suppress(OSError):
            env["VLLM_API_KEY"] = key.read_text(encoding="utf-8").strip()
        command = [sys.executable, "-P", "-m", "vllm_supervisor", "smoke", str(self.it.config_path), "--json"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SMOKE_LIMIT_S, env=env, cwd="/"
            )
        except subprocess.TimeoutExpired:
            raise StepError(f"no answer within {duration(SMOKE_LIMIT_S)}") from None
        right = done.returncode == 0
        try:
            said = json.loads(done.stdout)
            sentence = f"{said['sentence']} ({duration(said['seconds'])})"
            # An answer that is only slow is told, and no reason to go back.
            right = bool(said["passed"])
        except (ValueError, KeyError, TypeError):
            sentence = " ".join(done.stderr.split()) or f"`smoke` ended with {done.returncode}"
        if not right:
            raise StepError(sentence)
        say(sentence)
        return str(sentence)
