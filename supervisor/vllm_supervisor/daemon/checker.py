"""The check as the first phase of every start: from an instance to PreflightDone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_supervisor.adapters.engine_info import find_program, interpreter_of
from vllm_supervisor.core.events import PreflightDone
from vllm_supervisor.core.exits import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_supervisor.core.gpu import GpuTable

    from .instance import Instance

REMEDY = "make the environment with /usr/bin/python3 outside of home directories (see docs/install.md)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is begun at all: the exit code, and a sentence with the remedy."""

    code: ExitCode
    sentence: str


class Checker:
    """Looks before anything is started; under two seconds, and it never raises."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def engine_version(self) -> str:
        """The engine's version from its metadata, empty when it cannot be told without running it."""
        return ""

    def before_anything(self) -> Refusal | None:
        """A command that cannot be executed is a wrong configuration: refused before a file is written."""
        instance = self._instance
        command = instance.settings.engine.command
        environment = instance.engine_environment(os.environ, "")
        program = find_program(command, environment)
        where = f"{instance.config_path}: engine.command"
        if program is None:
            advice = "set it to the vllm program of its environment"
            return Refusal(ExitCode.PERMANENT, f"{where}: there is no program {command[0]}; {advice}")
        for path in filter(None, (program, interpreter_of(program))):
            complaint = _not_executable(path)
            if complaint:
                named = f"{path}" if path == program else f"{path}, the interpreter of {program},"
                return Refusal(ExitCode.PERMANENT, f"{where}: {named} {complaint}; {REMEDY}")
        return None

    def run(self, gpus: GpuTable | None) -> PreflightDone:
        """The first refusal, if any, and all warnings (in a worker thread)."""
        del gpus
        return PreflightDone()


def _not_executable(path: Path) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be reached by uid {os.getuid()}: {error.strerror}"
    return "" if os.access(path, os.X_OK) else f"cannot be executed by uid {os.getuid()}"
