"""The check as the first phase of every start: from an instance to PreflightDone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.events import PreflightDone
from vllm_supervisor.core.phases import Phase

if TYPE_CHECKING:
    from vllm_supervisor.core.gpu import GpuTable

    from .instance import Instance


class Checker:
    """Looks before anything is started; under two seconds, and it never raises."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def engine_version(self) -> str:
        """The engine's version from its metadata, empty when it cannot be told without running it."""
        return ""

    def run(self, gpus: GpuTable | None) -> PreflightDone:
        """The first refusal, if any, and all warnings (in a worker thread)."""
        program = self._instance.settings.engine.command[0]
        if "/" in program and not Path(program).exists():
            advice = "Set engine.command to the vllm program of its environment."
            return PreflightDone(_refusal("engine-not-executable", f"{program} does not exist", advice))
        if shutil.which(program) is None:
            advice = "Make the environment with /usr/bin/python3 outside of home directories (see docs/install.md)."
            return PreflightDone(
                _refusal("engine-not-executable", f"{program} cannot be executed by uid {os.getuid()}", advice)
            )
        return PreflightDone()


def _refusal(reason: str, summary: str, advice: str) -> Cause:
    return Cause(reason, summary=summary, advice=advice, phase=Phase.PREFLIGHT)
