"""systemd as its own commands offer it: units started, stopped, looked at; a transient unit for an operation."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SHORT_S = 20.0


class SystemctlError(Exception):
    """systemd refused or does not answer; the message is one sentence."""


def runs() -> bool:
    """Whether systemd is process 1 here (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def show(unit: str, *names: str) -> dict[str, str]:
    """Properties of a unit.

    Raises:
        SystemctlError: systemd does not answer.
    """
    done = _run(["show", unit, *(f"--property={name}" for name in names)])
    return dict(line.split("=", 1) for line in done.splitlines() if "=" in line)


def act(verb: str, unit: str) -> None:
    """Queue a job (`start`, `stop`, `restart`) and return at once; `pending` says when it is done.

    Raises:
        SystemctlError: systemd refused.
    """
    _run([verb, "--no-block", unit])


def reset_failed(unit: str) -> None:
    """Forget that a unit failed, so that its name is free."""
    subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False, timeout=SHORT_S)


def pending(unit: str) -> bool:
    """Whether a job of the unit is still queued or running."""
    return show(unit, "Job").get("Job", "0") not in {"", "0"}


def run_transient(
    unit: str, description: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> None:
    """Start a command in a unit of its own, away from this terminal; when it is killed it begins again.

    Args:
        unit: Name of the unit.
        description: What it is, for `systemctl status`.
        command: What runs.
        environment: Variables that it gets.

    Raises:
        SystemctlError: systemd refused, for instance because the unit runs already.
    """
    reset_failed(unit)
    properties = {
        "Description": description,
        "Restart": "on-abnormal",
        "RestartSec": "0.5",
        "StartLimitIntervalSec": "0",
        "KillMode": "control-group",
        "TimeoutStopSec": "20",
        "Type": "exec",
    }
    arguments = [f"--property={name}={value}" for name, value in properties.items()]
    arguments += [f"--setenv={name}={value}" for name, value in (environment or {}).items()]
    # Not --collect: a unit that failed is looked at until it is begun again.
    _run([f"--unit={unit}", "--quiet", *arguments, "--", *command], program="systemd-run")


def _run(arguments: Sequence[str], program: str = "systemctl") -> str:
    command = [program, *arguments]
    env = {**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SHORT_S, env=env)
    except FileNotFoundError:
        raise SystemctlError(f"{program} is not there: this needs systemd") from None
    except subprocess.TimeoutExpired:
        raise SystemctlError(f"systemd has not answered `{program} {arguments[0]}` for {SHORT_S:.0f} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SystemctlError(f"`{program} {' '.join(arguments[:3])}` failed: {said}")
    return done.stdout
