"""`loaders` with a stand-in for vLLM's package: every way that it has is measured, the others are said."""

from __future__ import annotations

import json
import sys

import pytest

from process.harness import write_config
from process.verbs import verb

TORCH = """
import array
uint8 = "B"
class _Flat:
    def __init__(self, data): self.data = memoryview(data)
    def numel(self): return len(self.data)
    def reshape(self, _): return self
    def view(self, _): return self
    def __getitem__(self, part): return _Flat(self.data[part])
    def copy_(self, other): self.data[:] = other.data
def empty(count, dtype): return _Flat(bytearray(count))
"""
UTILS = """
import torch
def safetensors_weights_iterator(files, use_tqdm_on_load, strategy=None):
    print("a line that vLLM prints must not be taken for an answer")
    if strategy == "eager":
        raise RuntimeError("no room for it")
    for path in files:
        yield path, torch._Flat(open(path, "rb").read())
def multi_thread_safetensors_weights_iterator(files, use_tqdm_on_load, max_workers=4):
    return safetensors_weights_iterator(files, use_tqdm_on_load)
"""


@pytest.fixture
def instance(tmp_path):
    packages = tmp_path / "packages"
    (packages / "vllm/model_executor/model_loader").mkdir(parents=True)
    for place in ("vllm", "vllm/model_executor", "vllm/model_executor/model_loader"):
        (packages / place / "__init__.py").touch()
    (packages / "vllm/model_executor/model_loader/weight_utils.py").write_text(UTILS)
    (packages / "torch.py").write_text(TORCH)
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    env = {"PYTHONPATH": str(packages)}
    path = write_config(tmp_path, engine={"command": [str(program), "serve"], "env": env})
    (tmp_path / "model/model.safetensors").write_bytes(bytes(1 << 20))
    return path


def test_what_is_installed_is_measured_and_the_rest_is_said(instance, tmp_path):
    done = verb("loaders", instance, "--json", "--svg", tmp_path / "out.svg")
    assert done.code == 0, done.err
    ways = {one["name"]: one for one in json.loads(done.out)["ways"]}
    assert all(ways[name]["warm"] > 0 for name in ("default", "multithread", "prefetch"))
    assert ways["eager"]["problem"] == "RuntimeError: no room for it"
    assert ways["runai_streamer"]["problem"] == "not installed (package runai-model-streamer)"
    assert {ways[name]["problem"] for name in ("fastsafetensors", "instanttensor")} == {"needs a GPU"}
    assert (tmp_path / "out.svg").read_text().startswith("<svg ")
    shown = verb("loaders", instance).out.splitlines()
    assert shown[0] == "fake: 1 of 1 shard, 1.0 MiB"
    assert next(line for line in shown if line.startswith("eager ")).endswith("-  RuntimeError: no room for it")
    assert shown == [line.rstrip() for line in shown]
    assert "nothing is recommended below 256.0 MiB" in shown[-1] or "no cold figures" in shown[-1]


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (["--sample", "much"], 64, "--sample: 'much' is no size"),
        (["--sample", "1KiB"], 64, "the smallest shard has 1.0 MiB, more than the 1.0 KiB that --sample allows"),
    ],
)
def test_refusals_are_one_sentence(instance, more, code, sentence):
    done = verb("loaders", instance, *more)
    assert (done.code, len(done.err.splitlines())) == (code, 1)
    assert sentence in done.err


def test_without_figures_it_fails(instance, tmp_path):
    (tmp_path / "packages/torch.py").unlink()
    done = verb("loaders", instance, PYTHONNOUSERSITE="1")
    assert done.code == 75
    assert "ModuleNotFoundError: No module named 'torch'" in done.out
