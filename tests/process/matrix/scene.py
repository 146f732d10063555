"""A daemon of the matrix: where it lives, what is taken from it, and how it is looked at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from fake.gpus import FAKE_NVML, FakeGpus
from process.daemon_tools import marked
from process.harness import SOURCE, Daemon, gone, write_config
from process.waiting import wait_until

SHIFT_SOURCE = Path(__file__).with_name("clock_shift.c")
BUDGET_S = 2.0


class Scene(Daemon):
    """A daemon whose surroundings can be taken away: its disk, its journal, its clock, its GPUs."""

    def __init__(
        self,
        folder: Path,
        fake: dict[str, Any],
        tables: dict[str, Any],
        *,
        small_state: bool = False,
        gpus: bool = False,
        shifted: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "notify").unlink(missing_ok=True)
        self.folder, self.fake, self.tables = folder, fake, tables
        self.small_state, self.hold = small_state, ""
        env: dict[str, str] = {}
        self.gpus: FakeGpus | None = None
        if gpus:
            self.gpus = FakeGpus(folder, count=2)
            env |= {"VSUP_FAKE_NVML": str(self.gpus.path), "PYTHONPATH": f"{FAKE_NVML}{os.pathsep}{SOURCE}"}
            tables = {**tables, "engine": {**tables.get("engine", {}), "device": "cuda"}}
        self.shift = folder / "clock-shift"
        if shifted:
            env |= {"LD_PRELOAD": str(shift_library()), "CLOCK_SHIFT_FILE": str(self.shift)}
        self.tables = tables
        super().__init__(write_config(folder, fake, **tables), folder, env=env)
        self.stats: dict[str, Any] = {}
        self.segments: list[str] = []
        self._reading = threading.Event()
        self._pump: threading.Thread | None = None
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self  # the phase says when it is started

    def start(self) -> Self:
        """Start it, with its stderr in a pipe that can be left unread, as a journal that is blocked."""
        for folder in (self.state, self.runtime):
            folder.mkdir(exist_ok=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_", "FAKE_"))
        }
        environment = {
            **kept,
            "PYTHONPATH": str(SOURCE),
            "STATE_DIRECTORY": str(self.state),
            "RUNTIME_DIRECTORY": str(self.runtime),
            "FAKE_ENGINE": str(self.folder / "fake.json"),
            # As under systemd, a row of failures goes on from one process to the next.
            "INVOCATION_ID": "0" * 32,
            **({"NOTIFY_SOCKET": str(self.notify.path)} if self.notify else {}),
            **self.extra,
        }
        command = [sys.executable, "-m", "vllm_supervisor", "run", "--config", str(self.config)]
        if self.small_state:
            self._mount()
            # As root, or in a user namespace of our own, both of which may mount.
            user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
            assert self._holder
            command = ["nsenter", "-t", str(self._holder.pid), "-m", *user, "--", *command]
        if self.hold:
            os.mkfifo(self.inside(self.hold))
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        self._reading.set()
        self._pump = threading.Thread(target=self._copy, daemon=True)
        self._pump.start()
        return self

    def _mount(self) -> None:
        """A disk of the daemon's own, that can be filled without filling anybody else's; it outlives the daemon."""
        if self._holder:
            return
        script = f"mount -t tmpfs -o size=1m,mode=0750 tmpfs {self.state} && echo mounted && exec sleep 1000"
        command = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout
        assert self._holder.stdout.readline() == b"mounted\n"

    def _copy(self) -> None:
        assert self.process
        assert self.process.stderr
        with self.err.open("ab") as err:
            while True:
                self._reading.wait()
                if not (piece := os.read(self.process.stderr.fileno(), 1 << 16)):
                    return
                err.write(piece)
                err.flush()

    def _close_pipe(self) -> None:
        self._reading.set()
        if self._pump:
            self._pump.join(10)
        if self.process and self.process.stderr:
            self.process.stderr.close()

    def block_journal(self) -> None:
        """Nobody reads what the daemon writes any more."""
        self._reading.clear()

    def inside(self, name: str) -> Path:
        """A file of the daemon's state directory, also where that is a mount of its own."""
        root = Path(f"/proc/{self._holder.pid}/root") if self._holder else Path("/")
        return root / str(self.state).lstrip("/") / name

    def fill_disk(self) -> None:
        """Leave no byte free where the daemon keeps its state."""
        with self.inside("filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
            except OSError:
                return

    def again(self, without: tuple[str, ...] = (), **fake: Any) -> None:
        """Start it (anew), as systemd or an operator does, with the engine's knobs less `without`."""
        if self.process:
            self.process.wait(10)
            self._close_pipe()
        self.control.close()
        knobs = {name: value for name, value in self.fake.items() if name not in without}
        engine = {**self.tables.get("engine", {}), "port": self.engine_port}
        tables = {**self.tables, "engine": engine, "metrics": {"listen": f"127.0.0.1:{self.port}"}}
        write_config(self.folder, {**knobs, **fake}, **tables)
        self.start()

    def look(self) -> None:
        """Remember the engine's processes and segments."""
        self.stats = self.control("stats")
        self.segments = list(dict.fromkeys([*self.segments, *self.stats["segments"]]))

    def last_status(self) -> str:
        assert self.notify
        told = self.notify.having("STATUS")
        return told[-1][1]["STATUS"] if told else ""

    def sweep(self) -> None:
        """What systemd does after the main process is gone: SIGKILL for the rest of the unit; its /dev/shm goes too."""
        for pid in marked(self):
            os.kill(pid, 9)
        wait_until(lambda: not marked(self), 5, "the end of the unit's processes", self.err)
        for segment in self.segments:
            Path(segment).unlink(missing_ok=True)

    def nothing_left(self) -> None:
        assert marked(self) == [], self.log()
        left = [segment for segment in self.segments if Path(segment).exists()]
        assert left == [], f"segments: {left}"
        assert not (self.runtime / "control.sock").exists()
        grandchild = self.stats.get("grandchild")
        assert grandchild is None or gone(grandchild)

    def __exit__(self, *unused: object) -> None:
        super().__exit__(*unused)
        self._close_pipe()
        if self._holder and self._holder.stdout:
            self._holder.kill()
            self._holder.wait(10)
            self._holder.stdout.close()
        for segment in self.segments:
            Path(segment).unlink(missing_ok=True)


def shift_library() -> Path:
    """A library that moves the wall clock of a process by the seconds in a file; built once."""
    built = SHIFT_SOURCE.parents[3] / "build" / "clock_shift.so"
    if not built.exists() or built.stat().st_mtime < SHIFT_SOURCE.stat().st_mtime:
        built.parent.mkdir(exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        assert shutil.which("gcc"), "gcc is missing: run `make deps`"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", str(fresh), str(SHIFT_SOURCE), "-ldl"], check=True, timeout=60
        )
        fresh.replace(built)
    return built
