"""The check as the first phase of every start: from an instance to PreflightDone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.adapters import overlay_dir
from vllm_supervisor.adapters.engine_info import find_program, interpreter_of, read_version
from vllm_supervisor.adapters.history import History
from vllm_supervisor.adapters.nvml_once import read_once
from vllm_supervisor.core import overlay
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.check.finding import Finding, Level
from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.observed import EngineView, GpuObservation, Observed, least_capability
from vllm_supervisor.core.check.settings import options
from vllm_supervisor.core.checkpoint import CheckpointError
from vllm_supervisor.core.events import PreflightDone
from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.neighbours import named
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.plan.engine import parse_version
from vllm_supervisor.core.plan.request import Measured

from .measured import measured_from
from .neighbours import Neighbours, neighbours_of, view_of
from .preflight import gather

if TYPE_CHECKING:
    from .instance import Instance

REMEDY = "make the environment with /usr/bin/python3 outside of home directories (see docs/install.md)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is begun at all: the exit code, and a sentence with the remedy."""

    code: ExitCode
    sentence: str


class Checker:
    """Looks before anything is started; under two seconds, and it never raises.

    Attributes:
        model: What the engine is to load: the checkpoint, or an overlay of it.
        devices: What the engine's environment gets besides, once the GPUs have been seen.
        neighbours: The other instances of this machine.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.model = instance.settings.engine.model
        self.devices: dict[str, str] = {}
        self.neighbours = Neighbours(instance, instance.configured_env())

    def engine_version(self) -> str:
        """The engine's version from its metadata, empty when it cannot be told without running it."""
        environment = self._instance.engine_environment(os.environ, "")
        return read_version(self._instance.settings.engine.command, environment) or ""

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

    def run(self) -> PreflightDone:
        """The first refusal, if any, and all warnings (in a worker thread)."""
        try:
            return self._run()
        except Exception as problem:  # noqa: BLE001 - a bug of the check must not keep a model down
            return PreflightDone(None, (f"the check itself failed ({type(problem).__name__}: {problem})",))

    def _run(self) -> PreflightDone:
        view = view_of(self._instance)
        gpus = read_once() if view.device == "cuda" else None
        seen = gather(
            view,
            gpus,
            None,
            measured=self._measured(),
            flags_cache=self._instance.state_dir,
            neighbours=neighbours_of(self._instance),
            held=self.neighbours.held(),
        )
        self._name_devices(gpus)
        found = findings(view, seen)
        warnings = tuple(f"{item.seen}; {item.remedy}" for item in found if item.level is Level.WARN)
        refused = next((item for item in found if item.level is Level.REFUSE), None)
        if refused is not None:
            return PreflightDone(_cause(refused), warnings)
        try:
            self.model = self._lay_over(view, seen)
        except (CheckpointError, overlay_dir.OverlayError) as problem:
            reason = problem.reason if isinstance(problem, CheckpointError) else "configuration-invalid"
            return PreflightDone(Cause(reason, summary=str(problem), phase=Phase.PREFLIGHT), warnings)
        # Last of all: from here on the others see that this instance is about to load.
        return PreflightDone(None, warnings, self.neighbours.ahead())

    def _name_devices(self, gpus: GpuObservation | None) -> None:
        """UUIDs become the numbers of this boot: not every engine understands UUIDs."""
        words = self._instance.settings.engine.gpus
        if not words or gpus is None or all(isinstance(word, int) for word in words):
            return
        found = named([str(word) for word in words], [(gpu.index, gpu.uuid) for gpu in gpus.gpus])
        if len(found) == len(words):
            self.devices = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, found))}

    def _measured(self) -> tuple[Measured, ...]:
        history = History(self._instance.history_path, read_only=True)
        try:
            return measured_from(history.rows(), self._instance.config_hash())
        finally:
            history.close()

    def _lay_over(self, view: EngineView, seen: Observed) -> str:
        """The directory that the engine loads: the same path at every start, the checkpoint untouched."""
        model = seen.model
        if model is None or model.shape is None or view.device != "cuda":
            return view.model
        capability = least_capability(seen.gpus.gpus) if seen.gpus else None
        dtype = options(view).text("kv-cache-dtype", "auto")
        release = parse_version(seen.engine.version if seen.engine else None)
        if not overlay.decide(view.overlay, dtype, model.shape, release, capability).wanted:
            return view.model
        target = self._instance.state_dir / "overlay" if view.overlay == "auto" else Path(view.overlay)
        overlay_dir.build(Path(model.path), target)
        return str(target)


def _cause(finding: Finding) -> Cause:
    return Cause(finding.reason, summary=finding.seen, advice=finding.remedy, phase=Phase.PREFLIGHT)


def _not_executable(path: Path) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be reached by uid {os.getuid()}: {error.strerror}"
    return "" if os.access(path, os.X_OK) else f"cannot be executed by uid {os.getuid()}"
