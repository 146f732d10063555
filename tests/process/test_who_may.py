"""What an ordinary user may not do ends with 77 and one sentence that says who may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from process.daemon_tools import running, until_ready
from process.harness import SOURCE

pytestmark = pytest.mark.timeout(180)
ROOT_OR_SERVICE = "run as root or as the service's user"


@pytest.fixture(scope="module")
def closed():
    """A daemon of root's whose files are closed to others; a configuration with an environment that is."""
    # Outside of pytest's own directories: every run of pytest closes them to others anew.
    folder = Path(tempfile.mkdtemp(prefix="closed."))
    folder.chmod(0o755)
    (folder / "fake.env").write_text("HF_TOKEN=hf_secret\n")
    with running(folder, {"pace": 0}) as daemon:
        until_ready(daemon)
        daemon.config.chmod(0o644)
        daemon.config.with_suffix(".env").chmod(0)
        (daemon.runtime / "control.sock").chmod(0)
        for name in ("model", "theirs"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o555)
        daemon.state.chmod(0)
        yield daemon
    for path in (daemon.state, folder / "theirs"):
        path.chmod(0o755)
    shutil.rmtree(folder)


def words(daemon, verb):
    """The command line of a verb, and what its sentence says."""
    folder, config = daemon.tmp_path, str(daemon.config)
    places = ["--state-dir", str(daemon.state), "--runtime-dir", str(daemon.runtime)]
    theirs = str(folder / "theirs")
    table = {
        "status": ([config, *places], ROOT_OR_SERVICE),
        "wait": ([config, *places, "--timeout", "5"], ROOT_OR_SERVICE),
        "history": ([config, *places], ROOT_OR_SERVICE),
        "reload": ([config, *places], ROOT_OR_SERVICE),
        "incident": (["list", config, *places], ROOT_OR_SERVICE),
        "smoke": ([config, *places], f"fake.env may not be read by you: {ROOT_OR_SERVICE}"),
        "check": (["--config", config], f"fake.env may not be read by you: {ROOT_OR_SERVICE}"),
        "init": (["--model", str(folder / "model"), "--output", f"{theirs}/x.toml"], "become root, or use --output"),
        "fetch": (["maker/model", "--to", f"{theirs}/m"], "is closed to you: run as its owner or as root"),
        "provision": (
            ["maker/model", "--to", f"{theirs}/m", "--vllm", "1.0", "--engine-dir", f"{theirs}/vllm"],
            f"environment: {theirs}/vllm-1.0.log is closed to you: run as root, or name a directory of yours",
        ),
    }
    return table[verb]


VERBS = ["status", "wait", "history", "reload", "incident", "smoke", "check", "init", "fetch", "provision"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_others_may_not_use_says_who_may(closed, verb):
    arguments, sentence = words(closed, verb)
    # Root becomes an ordinary user; what has no mode is closed to its owner as well.
    other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*other, sys.executable, "-m", "vllm_supervisor", verb, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 77, (done.stdout, done.stderr)
    said = [line for line in done.stderr.splitlines() if sentence in line]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert verb in {"provision", "init"} or said[0].startswith(f"vllm-supervisor {verb}: ")
    assert len(done.stderr.splitlines()) <= (4 if verb == "provision" else 1), done.stderr
    assert not list((closed.tmp_path / "theirs").iterdir()), "nothing half written"
