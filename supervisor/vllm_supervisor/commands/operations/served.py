"""An instance as systemd serves it: its unit, its configuration, and what a start of it would meet."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters import systemctl
from vllm_supervisor.core.check.finding import Finding
from vllm_supervisor.core.operations import unit_of
from vllm_supervisor.core.steps import Outcome

from ..places import WHO  # noqa: TID252 - a neighbour

if TYPE_CHECKING:
    from vllm_supervisor.core.check.observed import EngineView, GpuObservation, Observed
    from vllm_supervisor.daemon.instance import Instance

STATE_ROOT = Path("/var/lib/vllm-supervisor")


class StepError(Exception):
    """A step failed; the message is one sentence.

    Attributes:
        denied: For want of a right that another user has.
    """

    def __init__(self, sentence: str, *, denied: bool = False) -> None:
        super().__init__(sentence)
        self.denied = denied


class NoSystemdError(StepError):
    """This machine was not booted with systemd, so that no instance has a unit."""


@dataclass(frozen=True, slots=True)
class Served:
    """One instance under systemd."""

    name: str
    config_path: Path
    unit: str

    def show(self, *names: str) -> dict[str, str]:
        """Properties of its unit."""
        try:
            return systemctl.show(self.unit, *names)
        except systemctl.SystemctlError as error:
            raise StepError(str(error)) from None

    def act(self, verb: str) -> None:
        """Queue a job."""
        try:
            systemctl.act(verb, self.unit)
        except systemctl.SystemctlError as error:
            raise StepError(str(error)) from None

    def busy(self) -> bool:
        """Whether a job is under way."""
        return self.show("Job").get("Job", "0") not in {"", "0"}

    def user(self) -> str | None:
        """The service's user; None when it is root or unknown here."""
        name = self.show("User").get("User", "")
        try:
            pwd.getpwnam(name)
        except (KeyError, ValueError):
            return None
        return name

    def instance(self) -> Instance:
        """Its configuration as it is now.

        Raises:
            StepError: it cannot be used; every problem is named.
        """
        from vllm_supervisor.daemon.instance import read_instance

        found = read_instance(self.config_path, state_dir=STATE_ROOT / self.name)
        if isinstance(found, list):
            closed = next((problem.file for problem in found if problem.denied), "")
            if closed:
                raise StepError(f"{closed} may not be read by you: {WHO}", denied=True)
            raise StepError("; ".join(str(problem) for problem in found))
        return found

    def history(self, limit: int = 50) -> list[dict[str, Any]]:
        """Its last starts, oldest first; none when they cannot be read."""
        from vllm_supervisor.daemon.ask import AskError, past
        from vllm_supervisor.daemon.locate import UnknownInstanceError, locate

        try:
            return past(locate(self.name, {}, state_dir=STATE_ROOT / self.name), limit)
        except (AskError, UnknownInstanceError):
            return []


def served(name: str, config_path: Path) -> Served:
    """The instance and its unit.

    Raises:
        StepError: systemd does not answer, or has no unit for it.
    """
    if not systemctl.runs():
        raise NoSystemdError("systemd does not run here")
    try:
        unit = unit_of(name, systemctl.show(f"{name}.service", "LoadState", "ExecStart"))
        if systemctl.show(unit, "LoadState").get("LoadState") != "loaded":
            raise StepError(f"systemd has no unit {unit}; `make install` brings it")
    except systemctl.SystemctlError as error:
        raise StepError(str(error)) from None
    return Served(name, config_path, unit)


def check(
    it: Served, command: str | None = None, *, alone: bool = False
) -> tuple[tuple[Finding, ...], EngineView, Observed]:
    """What speaks against a start with the configuration as it is now, once the present engine is gone.

    Args:
        it: The instance.
        command: Another program instead of the configured one.
        alone: Nobody else may hold memory of its GPUs, either.

    Raises:
        StepError: the configuration cannot be used at all.
    """
    from vllm_supervisor.adapters.nvml_once import read_once
    from vllm_supervisor.core.check.findings import findings
    from vllm_supervisor.core.check.gpus import check_alone
    from vllm_supervisor.daemon.measured import measured_from
    from vllm_supervisor.daemon.neighbours import held_seen, view_of
    from vllm_supervisor.daemon.preflight import gather

    instance = it.instance()
    view = view_of(instance)
    if command is not None:
        view = replace(view, command=(command, *view.command[1:]))
    gpus = read_once() if view.device == "cuda" else None
    measured = measured_from(it.history(), instance.config_hash())
    held = held_seen(instance)
    seen = gather(view, gpus, it.user(), measured=measured, flags_cache=instance.state_dir, held=held)
    seen = without_unit(seen, it.unit)
    found = findings(view, seen)
    if alone:
        found += tuple(check_alone(view, seen.gpus, dict(seen.host.gpu_holders) if seen.host else {}))
    return found, view, seen


def without_unit(seen: Observed, unit: str) -> Observed:
    """The same machine after the unit's end: its ports and its GPU memory are free."""
    host = seen.host
    if host is None:
        return seen
    own = {pid for pid, holder in host.gpu_holders.items() if holder.unit == unit}

    def left(holder: Any) -> Any:
        return None if holder is not None and holder.unit == unit else holder

    cleared = replace(
        host,
        port_holder=left(host.port_holder),
        metrics_holder=left(host.metrics_holder),
        gpu_holders={pid: holder for pid, holder in host.gpu_holders.items() if pid not in own},
    )
    return replace(seen, host=cleared, gpus=_freed(seen.gpus, own))


def _freed(gpus: GpuObservation | None, own: set[int]) -> GpuObservation | None:
    if gpus is None:
        return None
    free = []
    for gpu in gpus.gpus:
        taken = sum(size for pid, size in gpu.processes if pid in own)
        rest = tuple(entry for entry in gpu.processes if entry[0] not in own)
        free.append(replace(gpu, used_bytes=max(gpu.used_bytes - taken, 0), processes=rest))
    return replace(gpus, gpus=tuple(free))


def plan_lines(view: EngineView, seen: Observed) -> list[str]:
    """The plan of the configured size as a table; empty where there is nothing to plan."""
    from vllm_supervisor.core.check.memory import plan_request
    from vllm_supervisor.core.check.settings import options
    from vllm_supervisor.core.plan import planner, present

    model = seen.model
    if view.device != "cuda" or not seen.gpus or model is None or model.shape is None or model.tally is None:
        return []
    asked = options(view)
    version = seen.engine.version if seen.engine else None
    request = plan_request(asked, seen.gpus, view, version, seen.measured)
    entry = planner.plan_one(model.shape, model.tally, request, asked.parallel())
    return present.plain_table(present.rows((entry,)))


def may_act(verb: str) -> str:
    """Why we may not, as a sentence; empty when we may."""
    if os.geteuid() == 0:
        return ""
    return f"only root may {verb} an instance, because it stops and starts a service: use sudo"


REFUSED = Outcome.REFUSED
