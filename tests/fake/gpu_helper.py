"""The real GPU helper with its pipe, for tests of what it prints and when it ends."""

from __future__ import annotations

import select
import subprocess
import time
from pathlib import Path

import pytest

from vllm_supervisor.adapters.gpu_stream import helper_command
from vllm_supervisor.core.gpu import parse_report

DEADLINE = 20.0


class Helper:
    """The helper with its pipe, ended at the end of the test."""

    def __init__(self, environment, period=0.02, command=None):
        self.process = subprocess.Popen(
            command or helper_command(period), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def line(self):
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
        if not ready:
            pytest.fail("no line in time")
        return self.process.stdout.readline()

    def report(self):
        return parse_report(self.line())

    def until(self, predicate):
        begin = time.monotonic()
        while time.monotonic() - begin < DEADLINE:
            report = self.report()
            if predicate(report):
                return report
        pytest.fail(f"not in time; the last report: {report}")

    def status(self, key):
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith(key + ":"))
