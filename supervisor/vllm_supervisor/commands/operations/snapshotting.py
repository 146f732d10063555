"""The steps of a snapshot beside those of the service: GPUs, disks, manifest, the given command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.manifest import manifest
from vllm_supervisor.core.operations import FREE_WITHIN_S
from vllm_supervisor.core.words import duration

from .ahead import Ahead
from .doing import Doing
from .inventory import parts_now, sync_all
from .served import StepError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_supervisor.adapters.steps_journal import StepsJournal

    from .runner import Doer, Say
    from .served import Served

EVERY_S = 1.0
SHOWN_LINES = 20
LIVING = "SNAPSHOT_MANIFEST"
"""The variable in which the command finds the manifest."""


class Snapshotting:
    """Makes one snapshot.

    Args:
        it: The instance.
        journal: The record; its head has `command`, `stop`, `manifest`, `timeout_s` and `free_within_s`.
    """

    def __init__(self, it: Served, journal: StepsJournal) -> None:
        self.it, self.journal = it, journal
        head = journal.head() or {}
        self.params = head["params"]

    def gpus(self, _: str, say: Say) -> str:
        """Nothing of the service runs, and nobody holds memory of its GPUs."""
        from vllm_supervisor.adapters.holders import gpu_holders
        from vllm_supervisor.adapters.nvml_once import read_once
        from vllm_supervisor.core.check.gpus import not_free, weights_pids
        from vllm_supervisor.daemon.neighbours import view_of

        view = view_of(self.it.instance())
        if view.device != "cuda":
            return "this instance uses no GPU"
        # An operation that another version of ours began has no such parameter.
        patience = float(self.params.get("free_within_s", FREE_WITHIN_S))
        until = time.monotonic() + patience
        while True:
            seen = read_once()
            if seen is None:
                return "no driver answers, so the GPUs are not checked"
            holders = gpu_holders(pid for gpu in seen.gpus for pid, _ in gpu.processes)
            held = not_free(view, seen, holders)
            if not held and weights_pids(view, holders):
                return "every GPU is free but for the weights that their own unit holds"
            if not held:
                return "every GPU is free"
            say(held)
            if time.monotonic() >= until:
                raise StepError(f"{duration(patience)} after the stop {held}")
            time.sleep(EVERY_S)

    def sync(self, _: str, __: Say) -> str:
        """Everything that was written is on the disks."""
        try:
            sync_all()
        except OSError as error:
            raise StepError(str(error.strerror)) from None
        return ""

    def manifest(self, _: str, __: Say) -> str:
        """Write it before the command runs, so that it is in the snapshot."""
        from vllm_supervisor.adapters.inventory import write_atomically

        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        whole = manifest(self.it.name, at, stopped=self.params["stop"], parts=parts_now(self.it))
        path = Path(self.params["manifest"])
        try:
            write_atomically(path, json.dumps(whole, indent=1).encode() + b"\n")
            sync_all()
        except OSError as error:
            raise StepError(f"{path} cannot be written: {error.strerror}") from None
        return str(path)

    def command(self, _: str, say: Say) -> str:
        """Run what was given; its output goes to a file beside the record."""
        output = self.journal.directory / "command.log"
        began, limit = time.monotonic(), float(self.params["timeout_s"])
        env = {**os.environ, LIVING: self.params["manifest"], "SNAPSHOT_INSTANCE": self.it.name}
        with output.open("wb") as file:
            try:
                process = subprocess.Popen(
                    self.params["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise StepError(f"{self.params['command'][0]} cannot be run: {error.strerror}") from None
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise StepError(f"it had not ended after {duration(limit)} and was killed; see {output}") from None
        for line in output.read_text(errors="replace").splitlines()[-SHOWN_LINES:]:
            say(line)
        if status:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
            raise StepError(f"it {how}; its output is in {output}")
        return f"done after {duration(time.monotonic() - began)}"


def snapshot_doers(it: Served, journal: StepsJournal) -> Mapping[str, Doer]:
    """Who takes which step."""
    doing, own = Doing(it, journal, alone=True), Snapshotting(it, journal)
    return {
        "check": doing.check,
        "ahead": Ahead(it).read,
        "stop": doing.stop,
        "gpus": own.gpus,
        "sync": own.sync,
        "manifest": own.manifest,
        "command": own.command,
        "start": doing.start,
        "wait": doing.wait,
        "smoke": doing.smoke,
    }
