"""Holds one machine and cleans up after it, also when the test process is killed.

Started by `machine.py` in a session of its own, with a pipe as standard input that only the test process holds open:
the end of that pipe is the order to stop, however it came about. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup", "--net")
PREFIX = "vsup-lab-"
EMPTY_DEADLINE_S = 10.0


def main(specs: list[str]) -> int:
    """Boots, says the first process's id on standard output, waits for the end of standard input, cleans up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cgroup = _make_cgroup()
    first: int | None = None
    scratch = tempfile.mkdtemp(prefix=PREFIX)
    boot = Path(__file__).with_name("boot.sh")
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *NAMESPACES,
        "--fork",
        "--kill-child=KILL",
        "sh",
        str(boot),
        scratch,
        *specs,
    ]
    try:
        # The child joins the cgroup before it unshares, so that the new cgroup namespace begins there.
        join = f'echo $$ >"{cgroup}/cgroup.procs" && exec "$@"'
        child = subprocess.Popen(["sh", "-c", join, "sh", *command], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            first = os.pidfd_open(pid := _first_process(child.pid))
            print(pid, flush=True)
            select.select([sys.stdin, first], [], [])
        finally:
            _end(child, first)
    finally:
        _remove_cgroup(cgroup)
        with contextlib.suppress(OSError):
            Path(scratch).rmdir()
    return 0


def _make_cgroup() -> Path:
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    found = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    if not found:
        raise SystemExit("no cgroup2 file system is mounted: mount one on /sys/fs/cgroup")
    own = next(
        line[3:]
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        if line.startswith("0::")
    )
    parent = Path(found[0] + own)
    for stale in parent.glob(f"{PREFIX}*"):
        if not _members(stale):
            _remove_cgroup(stale)
    cgroup = parent / f"{PREFIX}{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError as error:
        raise SystemExit(
            f"cannot make a cgroup in {parent} ({error.strerror}): run as root, outside a container with a read-only /sys/fs/cgroup"
        ) from None
    return cgroup


def _members(cgroup: Path) -> list[int]:
    pids: list[int] = []
    for procs in [cgroup / "cgroup.procs", *cgroup.rglob("cgroup.procs")]:
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in procs.read_text(encoding="utf-8").split()]
    return pids


def _first_process(unshare: int) -> int:
    """The process id, outside, of what is process 1 inside."""
    children = Path(f"/proc/{unshare}/task/{unshare}/children")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := children.read_text(encoding="utf-8").split():
                return int(found[0])
        time.sleep(0.01)
    raise SystemExit("unshare made no process within 10 s")


def _end(child: subprocess.Popen[bytes], first: int | None) -> None:
    """The kernel kills everything inside with process 1, and unshare reaps that and ends."""
    if first is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(first, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=EMPTY_DEADLINE_S)
    child.kill()
    child.wait()


def _remove_cgroup(cgroup: Path) -> None:
    deadline = time.monotonic() + EMPTY_DEADLINE_S
    while cgroup.exists() and time.monotonic() < deadline:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
        if cgroup.exists():
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
