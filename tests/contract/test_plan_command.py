"""The command `plan`: its JSON, its command line, and its speed at true scale."""

from __future__ import annotations

import json
import resource

import pytest

from contract.small_checkpoint import run_plan, write_small
from lab.sparse_checkpoint import CONFIG, write_checkpoint


@pytest.fixture
def model(tmp_path):
    return write_small(tmp_path / "m")


def test_table_of_a_plan(model, capsys):
    code, out, _ = run_plan(capsys, model, "--gpus", 2, "--gpu-memory", "8GiB")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].split()[:2] == ["TP", "fits"]
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "yes"], ["2", "yes"]]
    assert lines[-1].startswith("use: --tensor-parallel-size 1 --max-model-len 2048")
    assert "estimated" in out


def test_what_held_weights_cost_is_said_when_it_is_asked_for(model, capsys):
    machine = ("--gpus", 2, "--gpu-memory", "8GiB", "--engine-version", "0.32.0")
    _, out, _ = run_plan(capsys, model, *machine)
    assert "held" not in out
    code, out, _ = run_plan(capsys, model, *machine, "--held-weights")
    assert code == 0
    assert "weights held by a second unit" in out
    assert "held weights rule out: sleep mode" in out


def test_without_gpus_the_machine_has_to_be_described(model, capsys, monkeypatch):
    monkeypatch.setattr("vllm_supervisor.adapters.nvml_once.read_once", lambda: None)
    code, _, err = run_plan(capsys, model)
    assert code == 64
    assert "--gpus 8 --gpu-memory 95.6GiB" in err
    code, out, _ = run_plan(capsys, model, "--kv-cache-memory", "1GiB", "--json")
    assert code == 0, "how many tokens are that needs no GPU"
    assert json.loads(out)["plans"][0]["max_tokens"] == (1 << 30) // (2 * 2 * 16 * 2 * 16) * 16


def test_without_gpus_the_checkpoint_is_looked_at_all_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vllm_supervisor.adapters.nvml_once.read_once", lambda: None)
    code, out, err = run_plan(capsys, tmp_path / "gone")
    assert (code, out) == (78, "")
    assert f"{tmp_path / 'gone'} does not exist" in err.splitlines()[0]
    assert "no GPU answers here" in err.splitlines()[1]


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["table", "json"])
def test_what_does_not_fit_is_shown_and_ends_with_78(model, capsys, json_too):
    machine = ("--gpus", 2, "--gpu-memory", "8GiB", *json_too)
    assert run_plan(capsys, model, *machine, "--max-model-len", 2048)[0] == 0
    code, out, err = run_plan(capsys, model, *machine, "--max-model-len", 99_000_000)
    assert (code, err) == (78, "")
    assert "99000000" in out.replace(",", "")
    code, out, _ = run_plan(capsys, model, "--gpus", 2, "--gpu-memory", "64MiB", *json_too)
    assert code == 78
    assert out


def test_json_of_a_plan(model, capsys):
    code, out, err = run_plan(capsys, model, "--gpus", 2, "--gpu-memory", "8GiB", "--json")
    assert (code, err) == (0, "")
    plans = json.loads(out)["plans"]
    assert [entry["tensor_parallel_size"] for entry in plans] == [1, 2]
    needed = {
        "tensor_parallel_size", "fits", "reasons", "weights_bytes_per_gpu", "kv_bytes_per_token",
        "kv_cache_bytes_per_gpu", "max_tokens", "max_model_len", "suggested_args",
    }  # fmt: skip
    assert needed <= plans[0].keys()
    assert plans[0]["fits"] is True
    assert plans[0]["reasons"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "0", "--gpu-memory", "8GiB"], "--gpus"),
        (["--gpus", "-3", "--gpu", "H200"], "--gpus"),
        (["--gpus", "99999999999999999999", "--gpu", "H200"], "--gpus"),
        (["--gpus", "8", "--gpu-memory", "many"], "neither a size nor a card"),
        (["--gpus", "8", "--gpu-memory", "8GiB", "--gpu-memory-utilization", "1.5"], "at most 1"),
        (["--gpus", "8", "--kv-cache-memory", "x"], "11.7GiB"),
        (["--gpus", "8", "--gpu-memory", "8GiB", "--max-model-len", "0"], "at least 1"),
        (["--gpus", "8", "--gpu-memory", "8GiB", "--engine-version", "new"], "0.32.0"),
        (["--gpus", "8", "--gpu-memory", "8GiB", "--compute-capability", "x"], "12.0"),
    ],
)
def test_a_wrong_command_line_is_64(model, capsys, arguments, words):
    code, _, err = run_plan(capsys, model, *arguments)
    assert code == 64
    assert words in err


def test_cards_by_name(model, capsys):
    for arguments in (
        ["--gpus", "8", "--gpu", "RTX PRO 6000"],
        ["--gpus", "8xRTX PRO 6000"],
        ["--gpus", "8", "--gpu-memory", "NVIDIA RTX PRO 6000 Blackwell"],
    ):
        _, out, _ = run_plan(capsys, model, *arguments, "--json")
        gpus = json.loads(out)["gpus"]
        assert gpus == {"count": 8, "memory_bytes": int(95.6 * (1 << 30))}


def test_true_scale(tmp_path, capsys):
    """277,000 tensors in 119 shards of 550 GiB that take 70 MB: planned in less than 3 s of CPU."""
    write_checkpoint(tmp_path / "kimi")
    assert json.loads((tmp_path / "kimi" / "config.json").read_text()) == CONFIG
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "kimi").iterdir())
    assert used < 100_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    code, out, _ = run_plan(
        capsys, tmp_path / "kimi", "--gpus", 8, "--gpu-memory", "95.6GiB", "--gpu-memory-utilization", 0.95, "--json"
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 3
    assert code == 0
    answer = json.loads(out)
    assert answer["model"]["tensors"] > 277_000
    best = answer["plans"][-1]
    assert best["weights_bytes_per_gpu"] / (1 << 30) == pytest.approx(70.81, rel=0.03)
    assert 131_072 <= best["max_model_len"] < 262_144
    assert [entry["fits"] for entry in answer["plans"]] == [False, False, False, True]
