"""The engine's Python environments: a directory for each version, made beside the others, and the link to one of them.

A running engine loads modules late (F9.17), so that an environment in use is never changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

SHOWN = re.compile(r"^\s*(?:Collecting|Downloading|Installing|Building|Using cached|Processing)\b")
VERSION = re.compile(r"\d[0-9A-Za-z.+!_-]{0,63}")
TEXT_BYTES = 1 << 20


class InstallError(Exception):
    """An environment could not be made; the message is one sentence.

    Attributes:
        denied: Another user could make it.
        absent: pip finds no such version.
    """

    def __init__(self, sentence: str, *, denied: bool = False, absent: bool = False) -> None:
        super().__init__(sentence)
        self.denied, self.absent = denied, absent


def make(
    place: Path, version: str, *, python: str, pip_args: Sequence[str], log: Path, say: Callable[[str], None]
) -> None:
    """The environment of a version at `place`; what is there already is left as it is.

    It is built beside its place and moved there when it is whole, so that an interruption leaves nothing that looks
    like an environment.

    Args:
        place: Where it shall lie.
        version: Of vLLM.
        python: The interpreter; a service user must be able to execute it.
        pip_args: Further arguments, such as an index of one's own.
        log: Where pip's whole output goes.
        say: Told of pip's progress.

    Raises:
        InstallError: it could not be made.
    """
    fresh = place.with_name(f"{place.name}.new")
    try:
        if (place / "bin/vllm").exists():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if fresh.exists():
            shutil.rmtree(fresh)
    except OSError as error:
        raise _unwritable(Path(error.filename or place), error) from None
    _run([python, "-m", "venv", "--prompt", place.name, str(fresh)], log, say)
    pip = [str(fresh / "bin/python"), "-m", "pip", "--no-input", "--disable-pip-version-check", "install"]
    _run([*pip, "--no-compile", "--progress-bar", "off", *pip_args, f"vllm=={version}"], log, say)
    _name_final_path(fresh, place)
    packages = [str(path) for path in (fresh / "lib").glob("python3*/site-packages")]
    compile_ = [str(fresh / "bin/python"), "-m", "compileall", "-qq", "-f", "-j", "0", "-s", str(fresh), "-p"]
    # A file that does not compile is a template of some package, not a fault.
    with contextlib.suppress(InstallError):
        _run([*compile_, str(place), *packages], log, say)
    fresh.replace(place)


def interpreter_problem(python: str) -> str:
    """Why no environment can be made with this interpreter, in a few words; empty when it can be tried."""
    found = shutil.which(python, mode=os.F_OK)
    if found is None or Path(found).is_dir():
        return f"there is no program {python}"
    return "" if os.access(found, os.X_OK) else f"{found} cannot be executed"


def current(link: Path) -> Path | None:
    """Where the link points; None when it is none."""
    try:
        return link.parent / link.readlink()
    except OSError:
        return None


def turn(link: Path, target: Path) -> None:
    """Let the link point elsewhere, in one step.

    Raises:
        InstallError: it is no link, or cannot be written.
    """
    if link.exists() and not link.is_symlink():
        raise InstallError(f"{link} is a directory, not a link to one: move it away, then link it")
    fresh = link.with_name(f".{link.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)
    except OSError as error:
        raise _unwritable(link, error) from None


def _unwritable(path: Path, error: OSError) -> InstallError:
    if isinstance(error, PermissionError):
        return InstallError(f"{path} is closed to you: run as root, or name a directory of yours", denied=True)
    return InstallError(f"{path} cannot be written: {error.strerror}")


def _run(command: Sequence[str], log: Path, say: Callable[[str], None]) -> None:
    env = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore", "PYTHONUNBUFFERED": "1"}
    env = {name: value for name, value in env.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        with (
            log.open("a", encoding="utf-8") as file,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", env=env, cwd="/",
            ) as process,
        ):  # fmt: skip
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            last = ""
            for line in process.stdout:
                file.write(line)
                last = line.strip() or last
                if SHOWN.match(line):
                    say(line.strip()[:120])
    except OSError as error:
        if error.filename == str(log):
            raise _unwritable(log, error) from None
        raise InstallError(f"{command[0]} cannot be run: {error.strerror}") from None
    if process.returncode:
        said = last[:200].removeprefix("ERROR: ") or "it ended without a word"
        raise InstallError(f"{said} (all of it is in {log})", absent=said.startswith("No matching distribution"))


def _name_final_path(built: Path, place: Path) -> None:
    """Scripts and configuration name the place where they will lie."""
    for path in [*(built / "bin").iterdir(), built / "pyvenv.cfg"]:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > TEXT_BYTES:
            continue
        content = path.read_bytes()
        if str(built).encode() in content:
            path.write_bytes(content.replace(str(built).encode(), str(place).encode()))
