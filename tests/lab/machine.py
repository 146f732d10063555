"""A machine with real systemd as process 1, in private namespaces, over a copy-on-write view of this one.

`Machine` boots it in about two seconds and leaves nothing behind: no process, no mount, no cgroup. Inside are the
host's own files (changes go to a tmpfs), a network with loopback only, and none of the host's services. The
memory controllers may be absent (where the host has them on cgroup v1), so memory limits cannot be tested here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .paths import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

KEEPER = Path(__file__).with_name("keeper.py")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "systemctl": "systemd",
    "ip": "iproute2",
    "dbus-daemon": "dbus",
}
BOOT_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Bind:
    """A path of the host that is visible inside."""

    source: Path
    target: Path | None = None
    writable: bool = False

    def argument(self) -> str:
        """As boot.sh wants it."""
        return f"{'rw' if self.writable else 'ro'}:{self.source}:{self.target or self.source}"


@dataclass
class Machine:
    """Real systemd in private namespaces; use it as a context manager.

    Attributes:
        layers: Directories of the host whose content is copied over the root file system before the boot, as the
            installation of a package would do.
        binds: Paths of the host that are visible inside, read-only unless said otherwise.
    """

    layers: Sequence[Path] = ()
    binds: Sequence[Bind] = ()
    pid: int = 0
    boot_s: float = 0.0
    _keeper: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Boots and waits until systemd has started everything.

        Raises:
            LabError: It did not come up in time, or something that it needs is missing.
        """
        _require()
        started = time.monotonic()
        specs = [*(f"layer:{layer}" for layer in self.layers), *(bind.argument() for bind in self.binds)]
        command = [sys.executable, str(KEEPER), *specs]
        # A session of its own: an interrupt at the terminal reaches the tests, and the tests then close the pipe.
        self._keeper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.pid = self._await_first_process()
            self._await_boot(started + BOOT_DEADLINE_S)
        except BaseException:
            self.stop()
            raise
        self.boot_s = time.monotonic() - started

    def _await_first_process(self) -> int:
        said = self._keeper.stdout.readline() if self._keeper and self._keeper.stdout else ""
        if not said.strip():
            raise LabError(f"the machine did not start: {self._keeper_errors()}")
        return int(said)

    def _await_boot(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._keeper is None or self._keeper.poll() is not None:
                raise LabError(f"the machine ended while it booted: {self._keeper_errors()}")
            if _command_name(self.pid) == "systemd" and (self.root / "run/systemd/private").exists():
                break
            time.sleep(0.02)
        state = self.run(
            "systemctl is-system-running --wait", check=False, timeout=max(1.0, deadline - time.monotonic())
        )
        if state.stdout.strip() != "running":
            failed = self.run(
                "systemctl --failed --no-legend --plain; journalctl -b -p warning --no-pager | tail -n 20", check=False
            )
            raise LabError(
                f"the machine is {state.stdout.strip() or state.stderr.strip()!r}, not running: {failed.stdout}"
            )

    def _keeper_errors(self) -> str:
        if self._keeper is None:
            return "it was not started"
        if self._keeper.stdin:
            self._keeper.stdin.close()
            self._keeper.stdin = None
        try:
            _, errors = self._keeper.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            return "its keeper does not end"
        return " ".join(errors.split()) or f"keeper ended with {self._keeper.returncode}"

    def stop(self) -> None:
        """Ends every process of the machine and waits until nothing of it is left; a second call does nothing."""
        keeper, self._keeper, self.pid = self._keeper, None, 0
        if keeper is None:
            return
        for pipe in (keeper.stdin, keeper.stdout, keeper.stderr):
            if pipe and not pipe.closed:
                pipe.close()
        keeper.wait(timeout=30)

    @property
    def root(self) -> Path:
        """The machine's root directory as this process reaches it (do not follow absolute links through it)."""
        return Path(f"/proc/{self.pid}/root")

    def put(self, source: Path | str, target: str, mode: int = 0o644) -> None:
        """Writes a file inside: a copy of a file of the host, or the given text."""
        path = self.root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, Path):
            shutil.copyfile(source, path)
        else:
            path.write_text(source, encoding="utf-8")
        path.chmod(mode)

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = 30.0,
        user: str | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside: a list as it is, a text by the shell.

        Args:
            command: What to run.
            check: Whether an exit status other than 0 is an error.
            timeout: Seconds until the command and its children are killed.
            user: A user of the machine, instead of root.
            stdin: What it reads.

        Raises:
            AssertionError: It failed or took too long; the message holds its output.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if user:
            argv = ["/usr/sbin/runuser", "-u", user, "--", *argv]
        environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb", "SYSTEMD_PAGER": "cat"}
        enter = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-C", "-n", "--", *argv]
        process = subprocess.Popen(
            enter,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        shown = shlex.join(argv)
        try:
            out, err = process.communicate(stdin or "", timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"no end of `{shown}` within {timeout} s\n{out}\n{err}") from None
        if check and process.returncode:
            raise AssertionError(f"`{shown}` ended with {process.returncode}\n{out}\n{err}")
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def show(self, unit: str, name: str) -> str:
        """One property of a unit, as `systemctl show` gives it."""
        return self.run(["systemctl", "show", "--value", "-p", name, unit]).stdout.strip()

    def journal(self, unit: str, lines: int = 60) -> str:
        """The end of what a unit wrote."""
        return self.run(
            ["journalctl", "-u", unit, "-n", str(lines), "-o", "short-monotonic", "--no-pager"], check=False
        ).stdout

    def wait(self, command: str, seconds: float, unit: str | None = None) -> str:
        """Runs a shell command inside until it succeeds; its output.

        Raises:
            AssertionError: It did not within that many seconds; the message holds its output and the unit's journal.
        """
        deadline = time.monotonic() + seconds
        while True:
            done = self.run(command, check=False, timeout=max(1.0, seconds))
            if done.returncode == 0:
                return done.stdout
            if time.monotonic() > deadline:
                tail = self.journal(unit) if unit else ""
                raise AssertionError(
                    f"`{command}` did not succeed within {seconds} s\n{done.stdout}{done.stderr}\n{tail}"
                )
            time.sleep(0.1)


def _require() -> None:
    if os.geteuid() != 0:
        raise LabError("a machine of namespaces needs root: run the system tests as root or with sudo")
    if missing := sorted({package for tool, package in NEEDED.items() if shutil.which(tool, path=PATH) is None}):
        raise LabError(f"{', '.join(missing)} is missing: run `make deps`")


def _command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
