"""The compiled modules (`.pyc`) of the engine's environment: which are missing, and making them.

Without them every start compiles what it imports, and a service that may not write there never keeps the result.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCH = 200
"""Modules for one run of the interpreter: it ends soon after a Ctrl-C."""
BATCH_LIMIT_S = 300.0


def modules(root: Path) -> tuple[int, list[Path]]:
    """How many modules lie below a site-packages directory, and those without a compiled form.

    Args:
        root: `.../lib/python3.11/site-packages`; its name says for which interpreter.
    """
    tag = f"cpython-{root.parent.name.removeprefix('python').replace('.', '')}"
    count, missing = 0, []
    for place, _, names in os.walk(root):
        sources = [name for name in names if name.endswith(".py")]
        if not sources:
            continue
        count += len(sources)
        try:
            compiled = set(os.listdir(f"{place}/__pycache__"))
        except OSError:
            compiled = set()
        missing += [Path(place, name) for name in sources if f"{name[:-3]}.{tag}.pyc" not in compiled]
    return count, missing


def writable(files: Sequence[Path]) -> list[Path]:
    """Those whose compiled form we may write."""
    allowed: dict[Path, bool] = {}
    for file in files:
        if file.parent not in allowed:
            kept = file.parent / "__pycache__"
            allowed[file.parent] = os.access(kept if kept.is_dir() else file.parent, os.W_OK | os.X_OK)
    return [file for file in files if allowed[file.parent]]


def compile_modules(python: Path, files: Sequence[Path], show: Callable[[int], None]) -> str:
    """Compile them with their own interpreter, which imports nothing of the environment for it.

    Args:
        python: The interpreter.
        files: The modules; one that is no valid Python (a template) is passed over.
        show: Told how many are done.

    Returns:
        Why it could not be done, as half a sentence; empty when it was.
    """
    batches = [files[at : at + BATCH] for at in range(0, len(files), BATCH)]
    done = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            for size, problem in zip(
                map(len, batches), pool.map(lambda batch: _run(python, batch), batches), strict=True
            ):
                if problem:
                    return problem
                done += size
                show(done)
        finally:
            pool.shutdown(cancel_futures=True)
    return ""


def _run(python: Path, files: Sequence[Path]) -> str:
    try:
        subprocess.run(
            [str(python), "-I", "-S", "-m", "compileall", "-qq", "-i", "-"],
            input="".join(f"{file}\n" for file in files).encode("utf-8", "surrogateescape"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=BATCH_LIMIT_S,
            umask=0o022,  # the service's user has to read what an administrator with a closed umask makes
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{python} did not compile {len(files)} modules in {BATCH_LIMIT_S:.0f} s"
    except OSError as problem:
        return f"{python} cannot be executed: {problem.strerror}"
    return ""
