"""The command `check` on a real directory tree, and the call that the daemon makes."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time

import pytest

from lab.sparse_checkpoint import write_checkpoint
from process.waiting import free_port
from vllm_supervisor.adapters import systemctl
from vllm_supervisor.commands import check, places
from vllm_supervisor.core.check.observed import EngineView, GpuObservation, GpuSeen
from vllm_supervisor.core.plan.request import Measured
from vllm_supervisor.daemon import locate, preflight

SMALL = [
    ("model.embed_tokens.weight", "BF16", [64, 16]),
    ("model.layers.0.mlp.up_proj.weight", "BF16", [32, 16]),
]
CONFIG = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 4096}
GIB = 1 << 30


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A model and an engine that are fine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return fine(tmp_path)


def fine(place):
    """Make both below this directory."""
    write_checkpoint(place / "model", shards=2, config=CONFIG, all_tensors=SMALL)
    packages = place / "venv/lib/python3.11/site-packages/vllm/engine"
    packages.mkdir(parents=True)
    (packages.parent / "_version.py").write_text("version = '0.32.0'\n")
    (packages / "arg_utils.py").write_text(
        "class A:\n    max_model_len: int = 1\n    tensor_parallel_size: int = 1\n    uvicorn_log_level: str\n"
    )
    (place / "venv/bin").mkdir()
    (place / "venv/bin/python3").symlink_to(sys.executable)
    (place / "venv/bin/vllm").write_text(f"#!{place}/venv/bin/python3\n")
    (place / "venv/bin/vllm").chmod(0o755)
    return place


def write_config(place, extra="", args=""):
    text = f"""
[engine]
command = ["{place}/venv/bin/vllm", "serve"]
model = "{place}/model"
device = "cpu"
port = {free_port()}
{extra}
[engine.args]
{args}
"""
    (place / "kimi.toml").write_text(text)
    return place / "kimi.toml"


def run(capsys, *arguments):
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    args = parser.parse_args(["check", *map(str, arguments)])
    code = args.run(args)
    out, err = capsys.readouterr()
    return code, out, err


def refusals(out):
    return [finding for finding in json.loads(out)["findings"] if finding["level"] == "refuse"]


def test_nothing_is_refused_where_all_is_well(place, capsys):
    begin = time.monotonic()
    code, out, err = run(capsys, "--config", write_config(place), "--json")
    assert (code, err, refusals(out)) == (0, "", [])
    assert json.loads(out)["ok"] is True
    assert time.monotonic() - begin < 2


def test_what_held_weights_cost_and_rule_out_is_told(place, capsys):
    code, out, _ = run(capsys, "--config", write_config(place, extra="[weights]\nheld = true"))
    assert code == 78, "they need a GPU"
    costs, rules = [line for line in out.splitlines() if line.startswith("note ")]
    assert "518 MiB or more of each GPU" in costs
    assert rules.startswith("note    held weights rule out: sleep mode")
    assert len(json.loads(run(capsys, "--config", place / "kimi.toml", "--json")[1])["notes"]) == 2
    assert json.loads(run(capsys, "--config", write_config(place), "--json")[1])["notes"] == []


def test_every_problem_at_once(place, capsys):
    (place / "model" / "model-00002-of-00002.safetensors").unlink()
    config = write_config(place, args='tensor-paralel-size = 3\nmax-model-len = 99999\nuvicorn-log-level = "error"')
    code, out, _ = run(capsys, "--config", config, "--json")
    assert code == 78
    found = {finding["reason"]: finding for finding in refusals(out)}
    assert set(found) == {"checkpoint-incomplete", "bad-arguments", "max-model-len-too-long", "readiness-line-hidden"}
    assert all(finding["seen"] and finding["remedy"] and finding["check"] for finding in found.values())
    code, out, _ = run(capsys, "--config", config)
    assert code == 78
    assert 'write "tensor-parallel-size" instead' in out
    assert "4 refused" in out


def test_a_wrong_configuration_is_told_whole(place, capsys):
    (place / "bad.toml").write_text('[engine]\nmodle = "x"\nport = 99999999\n')
    code, out, err = run(capsys, "--config", place / "bad.toml", "--json")
    assert (code, err) == (78, "")
    assert len(refusals(out)) == 2
    assert {finding["reason"] for finding in refusals(out)} == {"configuration-invalid"}


def test_a_busy_port_is_transient(place, capsys):
    config = write_config(place)
    port = int(next(line for line in config.read_text().splitlines() if line.startswith("port")).split("=")[1])
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        with socket.create_server(("127.0.0.1", port)):
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
    try:
        os.read(ready[0], 1)
        code, out, _ = run(capsys, "--config", config, "--json")
    finally:
        os.write(done[1], b"x")
        os.waitpid(pid, 0)
        for end in (*ready, *done):
            os.close(end)
    assert code == 75
    assert f"pid {pid}" in refusals(out)[0]["seen"]


def test_for_the_service_user_when_root_asks(open_path, capsys):
    place = fine(open_path)
    (place / "model" / "config.json").chmod(0o600)
    config = write_config(place)
    code, out, _ = run(capsys, "--config", config, "--user", "nobody", "--json")
    assert code == 78
    assert any("config.json" in finding["seen"] and "may not read" in finding["seen"] for finding in refusals(out))
    assert run(capsys, "--config", config, "--json")[0] == 0, "the caller itself may"


@pytest.mark.parametrize("arguments", [[], ["a", "--config", "b"]])
def test_a_wrong_command_line_is_64(capsys, arguments):
    assert run(capsys, *arguments)[0] == 64


def test_an_unknown_user_is_64(place, capsys):
    code, _, err = run(capsys, "--config", write_config(place), "--user", "no-such-user-here")
    assert code == 64
    assert "--user" in err


def test_an_instance_that_is_not_there(capsys):
    code, out, err = run(capsys, "no-such-instance")
    assert (code, out) == (64, "")
    assert "there is no instance 'no-such-instance' (/etc/vllm-supervisor/no-such-instance.toml does not exist)" in err


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("kimi", "kimi"),
        ("kimi-weights", "kimi-weights"),
        ("qwen", "vllm@qwen"),
        ("qwen-weights", "vllm-weights@qwen"),
        ("heavy-weights", "vllm@heavy-weights"),
    ],
)
def test_the_unit_to_start_an_instance_with(tmp_path, monkeypatch, name, unit):
    monkeypatch.setattr(systemctl, "runs", lambda: True)
    monkeypatch.setattr(locate, "SYSTEM_CONFIG", tmp_path)
    for given in ("kimi", "qwen", "heavy-weights"):
        (tmp_path / f"{given}.toml").touch()
    at = tmp_path / f"{name}.toml"
    assert places.start_with(locate.Place(name, at, at, at)) == f"systemctl start {unit}"


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ()},
        {"command": ("a\0b",)},
        {"model": ""},
        {"model": "a\0b"},
        {"model": "/dev/null"},
        {"model": "x" * 5000},
        {"metrics_listen": "nonsense"},
        {"metrics_listen": "[::1]:1"},
        {"host": "no host", "port": 0},
        {"args": {"": [], "tensor-parallel-size": [1], "max-model-len": {"a": 1}}},
        {"env": {"CUDA_VISIBLE_DEVICES": ",,x", "HOME": "relative", "PATH": ""}},
    ],
)
def test_the_daemons_call_never_raises(place, changes):
    settings = {
        "command": (f"{place}/venv/bin/vllm", "serve"),
        "model": f"{place}/model",
        "port": free_port(),
    } | changes
    found = preflight.gather_and_check(EngineView(**settings), None, None)
    assert not [finding for finding in found if finding.check == "check"], "the check itself did not fail"


def test_a_bug_of_the_check_is_a_warning(place, monkeypatch):
    monkeypatch.setattr(preflight, "findings", lambda *_: 1 // 0)
    (finding,) = preflight.gather_and_check(EngineView(("vllm",), str(place / "model")), None, None)
    assert (finding.level, finding.check) == ("warn", "check")


def test_measured_figures_count(place):
    """The estimate says that it fits; an earlier start knows better."""
    gpus = GpuObservation((GpuSeen(0, "GPU-1", "NVIDIA H200", 2 * GIB, 0, (9, 0)),))
    view = EngineView((f"{place}/venv/bin/vllm", "serve"), f"{place}/model", port=free_port())
    assert not [finding for finding in preflight.gather_and_check(view, gpus, None) if finding.check == "memory"]
    start = Measured(tensor_parallel_size=1, weights_bytes=2 * GIB)
    found = preflight.gather_and_check(view, gpus, None, measured=(start,))
    assert [finding.reason for finding in found if finding.check == "memory"] == ["gpu-out-of-memory"]
