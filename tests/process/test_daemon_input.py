"""Bad input is answered with sentences and 78 before anything is started or written; secrets stay secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from process.daemon_tools import ended, incident, marked, running, told, until_ready
from process.harness import SOURCE, Daemon, write_config

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "failure-logs"


def refused(daemon: Daemon, code: int = 78) -> str:
    """What a daemon said that refused at once: nothing started, nothing written, no traceback."""
    assert daemon.wait_exit(15) == code
    assert list(daemon.state.iterdir()) == []
    assert list(daemon.runtime.iterdir()) == []
    assert marked(daemon) == []
    said = daemon.err.read_text()
    assert "Traceback" not in said
    assert daemon.out.read_text() == "", "data goes to stdout, errors to stderr"
    return said


def test_a_wrong_configuration_prints_all_its_problems(tmp_path):
    config = write_config(tmp_path)
    text = config.read_text().replace("[metrics]", "[metrics]\nlisten_on = 1").replace("[engine]", "[engine]\nprot = 1")
    port = next(line for line in text.splitlines() if line.startswith('"port"'))
    config.write_text(text.replace(port, '"port" = 70000') + "\n[stopp]\ndrain_s = 1\n[retry]\nmax_attempts = 0\n")
    config.with_suffix(".env").write_text("GOOD=1\nnot a line\n")
    (tmp_path / "good").mkdir()
    daemon = Daemon(write_config(tmp_path / "good"), tmp_path)  # which reads the file itself
    daemon.config = config
    with daemon:
        said = refused(daemon)
    name = str(config)
    for wanted in (
        f"{name}: engine.prot: unknown key; did you mean engine.port?",
        f"{name}: engine.port: must be at most 65535, but it is 70000",
        f"{name}: metrics.listen_on: unknown key; did you mean metrics.listen?",
        f"{name}: stopp: unknown table; did you mean [stop]?",
        f"{name}: retry.max_attempts: must be at least 1, but it is 0",
        f"{config.with_suffix('.env')}: line 2: expected NAME=VALUE",
    ):
        assert wanted in said
    assert len(said.splitlines()) == 6


@pytest.mark.parametrize("case", ["missing", "not-executable", "no-interpreter", "not-in-path"])
def test_an_engine_that_cannot_be_executed_is_refused_before_anything_is_written(tmp_path, case):
    program = tmp_path / "vllm"
    if case == "not-executable":
        program.write_text("#!/bin/sh\n")
    elif case == "no-interpreter":
        program.write_text(f"#!{tmp_path}/gone/python3\n")
        program.chmod(0o755)
    command = "no-such-vllm" if case == "not-in-path" else str(program)
    config = write_config(tmp_path, engine={"command": [command, "serve"]})
    with Daemon(config, tmp_path) as daemon:
        said = refused(daemon)
    (line,) = said.splitlines()
    assert line.startswith(f"vllm-supervisor: {config}: engine.command: ")
    assert {
        "missing": f"there is no program {program}",
        "not-in-path": "there is no program no-such-vllm",
        "not-executable": f"{program} cannot be executed by uid",
        "no-interpreter": f"{tmp_path}/gone/python3, the interpreter of {program}, does not exist",
    }[case] in line
    assert told(daemon, "STATUS")[-1] in line


def unprivileged(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    """`run` as another user, who may write only the state and runtime directories."""
    for folder in (daemon.state, daemon.runtime):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.getuid() == 0 else []
    return subprocess.run(
        [*command, sys.executable, "-m", "vllm_supervisor", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "STATE_DIRECTORY": str(daemon.state),
             "RUNTIME_DIRECTORY": str(daemon.runtime), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_files_that_the_service_user_may_not_use_are_named(open_path):
    tmp_path = open_path
    config = write_config(tmp_path)
    config.chmod(0o644)
    daemon = Daemon(config, tmp_path)
    assert daemon.notify
    daemon.notify.close()
    env = config.with_suffix(".env")
    env.write_text("HF_TOKEN=hf_secret\n")
    env.chmod(0)
    done = unprivileged(daemon, "run", "--config", str(config))
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == f"{env}: cannot be read: Permission denied; let the service user read it\n"
    env.unlink()

    # An environment made from an interpreter in somebody's home: its owner can run it, the service user not.
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "python3").symlink_to(sys.executable)
    program = tmp_path / "vllm"
    program.write_text(f"#!{home}/python3\n")
    program.chmod(0o755)
    config.write_text(config.read_text().replace(json.dumps(sys.executable), json.dumps(str(program))))
    done = unprivileged(daemon, "run", "--config", str(config))
    assert done.returncode == 78
    assert f"{home}/python3, the interpreter of {program}, cannot be reached by uid" in done.stderr
    assert "/usr/bin/python3" in done.stderr
    assert list(daemon.state.iterdir()) == list(daemon.runtime.iterdir()) == []


@pytest.mark.parametrize("place", ["state", "run"])
def test_a_directory_that_is_a_file_is_a_sentence(tmp_path, place):
    config = write_config(tmp_path, {"pace": 0})
    for name in ("state", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "other").write_text("a file")
    words = ("--state-dir" if place == "state" else "--runtime-dir", str(tmp_path / "other"))
    with Daemon(config, tmp_path, args=words) as daemon:
        said = refused(daemon)
    assert said.startswith(f"vllm-supervisor: {tmp_path / 'other'} cannot be used: File exists; ")


def test_secrets_never_show(tmp_path):
    keys = {"api-key": "sk-arguments-7d1", "HF_TOKEN": "hf_environment_7d2", "OTHER_SECRET": "file-7d3"}
    engine = {"args": {"api-key": keys["api-key"]}, "env": {"HF_TOKEN": keys["HF_TOKEN"]}}
    leak = " and ".join(keys.values())
    (tmp_path / "fake.env").write_text(f"OTHER_SECRET={keys['OTHER_SECRET']}\n")
    record = ("--record", str(tmp_path / "record"))
    fake = {"pace": 0, "faults": [{"at": "configuring", "text": f"given: {leak}"}]}
    with running(tmp_path, fake, args=record, engine=engine) as daemon:
        until_ready(daemon)
        seen = [daemon.get(path).text for path in ("/status", "/metrics", "/readyz", "/")]
        daemon.sigterm()
        ended(daemon, 0)
        assert "given: *** and *** and ***" in daemon.log()
    # The line that proves a failure goes everywhere: STATUS, history, incident, recording.
    log = tmp_path / "failed.log"
    text = (CORPUS / "gpu-out-of-memory-weights-v0.30.log").read_text()
    cause = "torch.OutOfMemoryError: CUDA out of memory."
    assert cause in text
    log.write_text(text.replace(cause, f"{cause} {leak}"))
    fake = {"fail_with": str(log), "scale": 0}
    with running(
        tmp_path, fake, args=record, engine={**engine, "args": {**engine["args"], "tensor-parallel-size": 8}}
    ) as daemon:
        ended(daemon, 78, "gpu-out-of-memory")
    assert "*** and *** and ***" in incident(daemon)["cause"]["evidence"]
    seen.append(str(told(daemon, "STATUS")))
    files = (*tmp_path.glob("daemon.*"), *daemon.state.rglob("*"), tmp_path / "record")
    seen += [path.read_bytes().decode("latin-1") for path in files if path.is_file()]
    for secret in keys.values():
        assert not [text for text in seen if secret in text]
