"""Stacks of a hung engine: by py-spy where it is installed and allowed, else by SIGABRT.

py-spy reads the memory of a living process (`--nonblocking`: without stopping it); a sandbox or
`ptrace_scope` may forbid that. The engine runs with PYTHONFAULTHANDLER=1, so that on SIGABRT each
interpreter prints its stacks to stderr and ends; it is about to be killed anyway.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PY_SPY_S = 4.0
"""Time for one process; with symbols of CUDA libraries to read it takes a second or two."""
ALL_S = 10.0
ABORT_S = 0.5
"""Time for one interpreter to print its stacks after SIGABRT."""
LAST_WORDS_S = 0.1
LOOK_EVERY_S = 0.02


def find_py_spy(program: str, search: str) -> str | None:
    """py-spy beside the engine's program, or else on a search path."""
    beside = Path(program).parent / "py-spy"
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy", path=search or None)


def by_py_spy(tool: str, pids: Sequence[int], limit_s: float = ALL_S) -> dict[int, str]:
    """What py-spy says of each process that it can read, within `limit_s` seconds (in a worker thread)."""
    until = time.monotonic() + limit_s
    found: dict[int, str] = {}
    running: dict[int, subprocess.Popen[bytes]] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            running[pid] = subprocess.Popen(
                [tool, "dump", "--nonblocking", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", "")},
            )
    for pid, process in running.items():
        try:
            left = max(min(until - time.monotonic(), PY_SPY_S), 0.1)
            out, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        text = out.decode(errors="replace").strip()
        if process.returncode == 0 and text:
            found[pid] = text
    return found


def by_abort(pids: Sequence[int], listen: Callable[[], Sequence[str]], limit_s: float = ALL_S) -> dict[int, str]:
    """SIGABRT to each process, one after the other, so that their stacks do not mix (in a worker thread).

    All are stopped first: an engine core that sees its first worker die would end the others before
    they have said anything.

    Args:
        pids: The processes, those first whose stacks matter most.
        listen: Gives the lines that the engine has printed since it was asked last.
        limit_s: Seconds for all of them; those that are left get their signal all the same.
    """
    until = time.monotonic() + limit_s
    found: dict[int, str] = {}
    listen()
    there = [pid for pid in pids if _signal(pid, signal.SIGSTOP)]
    for pid in there:
        if not (_signal(pid, signal.SIGABRT) and _signal(pid, signal.SIGCONT)):
            continue
        end = min(time.monotonic() + ABORT_S, until)
        while time.monotonic() < end and not _gone(pid):
            time.sleep(LOOK_EVERY_S)
        time.sleep(LAST_WORDS_S if time.monotonic() < until else 0.0)
        text = "\n".join(listen()).strip()
        if text:
            found[pid] = text
    return found


def as_text(stacks: Mapping[int, str], names: Mapping[int, str]) -> str:
    """All stacks with a headline for each process."""
    return "\n\n".join(f"=== {names.get(pid, 'process')} (pid {pid})\n{text}" for pid, text in stacks.items())


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True
