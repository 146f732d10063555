"""Claims on disk: readable by all, true only while their process lives."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from process.harness import write_config
from vllm_supervisor.adapters.neighbours import (
    born,
    cacheable_bytes,
    is_enabled,
    read_claims,
    weights_bytes,
    withdraw_claim,
    write_claim,
)
from vllm_supervisor.config import load
from vllm_supervisor.core.neighbours import Claim, Needs, Standing
from vllm_supervisor.daemon.instance import read_instance
from vllm_supervisor.daemon.neighbours import configured, neighbours_of


def claim(name, pid):
    return Claim(Needs(name, ("0",)), pid, born(pid), 1.0, loading=True, page={"status": "Loading"})


@pytest.fixture
def other(tmp_path):
    """A living process and the runtime directory of its instance, `b`."""
    directory = tmp_path / "run" / "b"
    directory.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process, directory
        process.kill()


def test_a_claim_counts_while_its_process_lives(tmp_path, other):
    process, directory = other
    before = os.umask(0o077)
    try:
        write_claim(directory, claim("b", process.pid))
    finally:
        os.umask(before)
    assert stat.S_IMODE((directory / "claim.json").stat().st_mode) == 0o644
    assert [found.needs.name for found in read_claims([tmp_path / "run", tmp_path / "run"])] == ["b"]
    assert read_claims([tmp_path / "run"], but="b") == []
    process.kill()
    process.wait()
    assert read_claims([tmp_path / "run"]) == []


def test_a_pid_that_was_given_away_claims_nothing(tmp_path, other):
    process, directory = other
    write_claim(directory, Claim(Needs("b"), process.pid, born(process.pid) - 1))
    assert read_claims([tmp_path / "run"]) == []


def test_nonsense_and_absence_are_no_claims(tmp_path, other):
    _, directory = other
    (directory / "claim.json").write_text("{half")
    assert read_claims([tmp_path / "run", tmp_path / "missing"]) == []
    withdraw_claim(directory)
    withdraw_claim(directory)
    write_claim(tmp_path / "missing", claim("b", os.getpid()))
    assert list(directory.iterdir()) == []


def test_enabled_is_a_link_of_systemd(tmp_path):
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    (wants / "vllm@b.service").symlink_to("/usr/lib/systemd/system/vllm@.service")
    assert is_enabled("b", [tmp_path])
    assert not is_enabled("c", [tmp_path, tmp_path / "missing"])


def test_sizes(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert weights_bytes(tmp_path) == 5
    assert weights_bytes(tmp_path / "missing") == 0
    assert (cacheable_bytes() or 0) > 0
    assert cacheable_bytes(tmp_path) is None


def test_what_is_configured_and_what_runs(tmp_path, other, monkeypatch):
    process, directory = other
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("a", "b", "c"):
        (etc / f"{name}.toml").write_text('[engine]\nmodel = "/m"\ngpus = [0, 1]\nport = 8000\n')
    (etc / "wrong.toml").write_text("[engine")
    assert configured(etc)["c"].gpus == ("0", "1")
    write_claim(directory, claim("b", process.pid))
    mine = read_instance(etc / "a.toml", runtime_dir=tmp_path / "run" / "a", state_dir=tmp_path)
    assert not isinstance(mine, list)
    found = {item.needs.name: item.standing for item in neighbours_of(mine, etc)}
    assert found == {"b": Standing.RUNNING, "c": Standing.CONFIGURED}


def test_what_a_node_of_a_cluster_takes_is_that_of_this_machine(tmp_path):
    sizes = "[engine.args]\ntensor-parallel-size = 8\npipeline-parallel-size = 2\n"
    for rank, name in enumerate(("head", "other")):
        table = f'[cluster]\nnnodes = 2\nnode_rank = {rank}\nhead = "10.0.0.1"\n'
        (tmp_path / f"{name}.toml").write_text(f'[engine]\nmodel = "/m"\n{sizes}{table}')
    found = configured(tmp_path)
    assert [found[name].count for name in ("head", "other")] == [8, 8]
    assert found["head"].further == (("cluster.port", "10.0.0.1:9479"), ("cluster.master_port", "0.0.0.0:29501"))
    assert found["other"].further == ()
    assert found["head"].listens[2:] == ("10.0.0.1:9479", "0.0.0.0:29501")


def test_gpus_become_the_engines_environment(tmp_path):
    path = write_config(tmp_path, engine={"gpus": [2, "GPU-1a"], "device": "cuda"})
    instance = read_instance(path, state_dir=tmp_path, runtime_dir=tmp_path)
    assert not isinstance(instance, list)
    environment = instance.engine_environment({"CUDA_VISIBLE_DEVICES": "7"}, "x")
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,GPU-1a"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert instance.gpus() == ("2", "GPU-1a")
    path.with_suffix(".env").write_text("CUDA_VISIBLE_DEVICES=3\n")
    problems = read_instance(path, state_dir=tmp_path, runtime_dir=tmp_path)
    assert [problem.key for problem in problems] == ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("gpus = 0", "must be a list of GPU numbers or UUIDs"),
        ("gpus = [0, 0]", "names a GPU twice"),
        ("gpus = [true]", "must be a list of GPU numbers or UUIDs"),
        ('gpus = ["0"]', "must be a list of GPU numbers or UUIDs"),
        ('gpus = [0]\ndevice = "cpu"', 'gpus needs device = "cuda"'),
        ('gpus = [0]\nenv = {CUDA_VISIBLE_DEVICES = "1"}', "say the same"),
    ],
)
def test_wrong_gpus_are_one_problem(tmp_path, lines, words):
    path = tmp_path / "x.toml"
    path.write_text(f'[engine]\nmodel = "/m"\n{lines}\n')
    problems = load(path)
    assert isinstance(problems, list)
    assert len(problems) == 1
    assert words in str(problems[0])
