"""`provision`: an environment from stand-in wheels and a model from a hub on loopback, at once and each alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.hub_server import HubServer
from system.test_operators_upgrade import wheel

pytestmark = pytest.mark.timeout(180)


def provision(hub: HubServer, folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [
        sys.executable, "-m", "vllm_supervisor", "provision", hub.repo, "--to", str(folder / "model"), "--vllm", version,
        "--engine-dir", str(folder / "vllm"), "--python", sys.executable,
        "--pip-args", f"--no-index --find-links={folder}",
    ]  # fmt: skip
    env = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home")}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)


def test_each_fails_and_goes_on_alone(tmp_path: Path) -> None:
    wheel(tmp_path, "0.32.0")
    with HubServer({"config.json": b"{}", "model.safetensors": bytes(1 << 20)}) as hub:
        failed = provision(hub, tmp_path, "0.99.0")
        assert failed.returncode == 75, failed.stderr
        assert "environment: ERROR: No matching distribution found for vllm==0.99.0" in failed.stderr
        assert "model: " in failed.stdout
        assert (tmp_path / "model/model.safetensors").stat().st_size == 1 << 20
        assert not (tmp_path / "vllm").exists()
        asked = len(hub.asked)

        done = provision(hub, tmp_path, "0.32.0")
        assert done.returncode == 0, done.stderr
        assert len(hub.asked) == asked, "the model was there already"
        assert (tmp_path / "vllm").readlink() == tmp_path / "vllm-0.32.0"
        first = (tmp_path / "vllm/bin/vllm").read_text().splitlines()[0]
        assert str(tmp_path / "vllm-0.32.0/bin/python") in first
        assert ".new" not in first


def test_a_model_that_does_not_exist_does_not_keep_the_environment_from_coming(tmp_path: Path) -> None:
    wheel(tmp_path, "0.32.0")
    with HubServer({"config.json": b"{}"}) as hub:
        hub.token = "hf_secret"
        done = provision(hub, tmp_path, "0.32.0")
    assert done.returncode == 78
    assert "model: maker/model is gated" in done.stderr
    assert (tmp_path / "vllm/bin/vllm").exists()
