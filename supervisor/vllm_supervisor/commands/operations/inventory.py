"""The parts of a manifest as they are now."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor import __version__

if TYPE_CHECKING:
    from .served import Served


def parts_now(it: Served) -> dict[str, Any]:
    """Everything that a manifest holds of an instance.

    Raises:
        StepError: its configuration cannot be read.
    """
    from vllm_supervisor.adapters.engine_info import package_directories, read_version
    from vllm_supervisor.adapters.inventory import files, hash_of, packages
    from vllm_supervisor.adapters.model_path import locate
    from vllm_supervisor.adapters.nvml_once import read_once

    instance = it.instance()
    engine = instance.settings.engine
    env = instance.engine_environment(os.environ, "")
    gpus = read_once() if engine.device == "cuda" else None
    installed = packages(package_directories(engine.command, env))
    uname = os.uname()
    return {
        "versions": {
            "vllm": read_version(engine.command, env) or "",
            "torch": installed.get("torch", ""),
            "driver": gpus.driver_version if gpus else "",
            "kernel": f"{uname.sysname} {uname.release} {uname.machine}",
            "supervisor": __version__,
            "engine": _real(engine.command),
        },
        "packages": installed,
        "configuration": {
            str(path): hash_of(path) for path in (it.config_path, it.config_path.with_suffix(".env")) if path.exists()
        },
        "units": _units(it.unit),
        "checkpoint": {"path": str(locate(engine.model, env)), **files(locate(engine.model, env))},
        "gpus": {gpu.uuid: f"{gpu.name}, {gpu.total_bytes} bytes" for gpu in gpus.gpus} if gpus else {},
        "last_start": _last_start(it),
    }


def _real(command: list[str]) -> str:
    return str(Path(command[0]).resolve()) if command else ""


def _units(unit: str) -> dict[str, str]:
    """Unit file and drop-ins by path: their hashes."""
    from vllm_supervisor.adapters.inventory import hash_of
    from vllm_supervisor.adapters.systemctl import show

    found = show(unit, "FragmentPath", "DropInPaths")
    paths = [found.get("FragmentPath", ""), *found.get("DropInPaths", "").split()]
    return {path: hash_of(Path(path)) for path in paths if path}


def _last_start(it: Served) -> dict[str, Any]:
    for row in reversed(it.history()):
        if row.get("ready_at"):
            return {
                "ready_after_s": round(row["ready_at"] - row["began_at"], 1),
                "engine_version": row["engine_version"],
                "phases": row["phases"],
                "figures": row["figures"],
            }
    return {}


def sync_all() -> None:
    """Flush every file system; sync(1) waits for the disks and says what failed.

    Raises:
        OSError: sync is not there or failed.
    """
    done = subprocess.run(["sync"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.returncode, " ".join(done.stderr.split()) or "sync failed")
