"""Real directories, whole and damaged: the reading and what the command says about them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from contract.small_checkpoint import SMALL, SMALL_CONFIG, run_plan, write_small
from lab.sparse_checkpoint import write_shard
from vllm_supervisor.adapters.checkpoint import INDEX, read_checkpoint
from vllm_supervisor.adapters.model_path import locate

FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def model(tmp_path):
    return write_small(tmp_path / "m")


def test_a_whole_checkpoint(model):
    seen = read_checkpoint(model)
    assert seen.problems == ()
    assert (seen.shards, len(seen.tensors), seen.tokenizer) == (2, 4, True)
    assert seen.file_bytes == sum(path.stat().st_size for path in model.glob("*.safetensors"))


def truncate(path, size):
    os.truncate(path, size)


def break_header(model):
    truncate(model / FIRST, 20)


def header_longer_than_file(model):
    (model / FIRST).write_bytes((10_000).to_bytes(8, "little") + b"{}")


def overlapping(model):
    header = {
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
    }
    text = json.dumps(header).encode()
    (model / FIRST).write_bytes(len(text).to_bytes(8, "little") + text + bytes(6))


def unknown_dtype(model):
    text = json.dumps({"a": {"dtype": "Q3_K", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (model / FIRST).write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))


def huge_json(model):
    with (model / "config.json").open("r+b") as file:
        file.truncate(200 * 1000 * 1000)


def huge_index(model):
    with (model / INDEX).open("r+b") as file:
        file.truncate(200 * 1000 * 1000)


def loop(model):
    (model / FIRST).unlink()
    (model / FIRST).symlink_to(model / "b")
    (model / "b").symlink_to(model / FIRST)


def config_loop(model):
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("config.json")


def pipe(model):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")


def directory_for_shard(model):
    (model / FIRST).unlink()
    (model / FIRST).mkdir()


BAD = [
    (break_header, "truncated"),
    (header_longer_than_file, "truncated"),
    (overlapping, "overlapping"),
    (unknown_dtype, "unknown dtype 'Q3_K'"),
    (lambda model: (model / FIRST).unlink(), "missing"),
    (lambda model: write_shard(model / "model-00003-of-00002.safetensors", SMALL[:1]), "named by no index"),
    (lambda model: (model / INDEX).unlink(), f"no {INDEX}"),
    (lambda model: (model / INDEX).write_text("{"), "not valid JSON"),
    (lambda model: (model / "config.json").write_text("{}"), "num_hidden_layers"),
    (lambda model: (model / "config.json").write_bytes(b"\xff\xfe"), "not valid JSON"),
    (lambda model: (model / "config.json").write_text('{"a":' * 50_000), "nested too deeply"),
    (lambda model: (model / "config.json").unlink(), "no config.json"),
    (lambda model: write_shard(model / FIRST, SMALL[:1]), "promises"),
    (huge_json, "far more"),
    (huge_index, "far more"),
    (loop, "form a loop"),
    (config_loop, "form a loop"),
    (pipe, "no regular file"),
    (directory_for_shard, "is a directory"),
]


@pytest.mark.parametrize(("damage", "words"), BAD, ids=range(len(BAD)))
def test_damage_is_one_sentence_and_78(model, capsys, damage, words):
    damage(model)
    code, out, err = run_plan(capsys, model, "--gpus", 1, "--gpu-memory", "8GiB")
    assert (code, out) == (78, "")
    assert words in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_a_directory_that_is_not_there(tmp_path, capsys):
    code, _, err = run_plan(capsys, tmp_path / "none", "--gpus", 1, "--gpu-memory", "8GiB")
    assert code == 78
    assert "does not exist" in err


def test_an_unreadable_file_as_an_ordinary_user(model, open_path):
    """As root every file is readable, so a child that is nobody reads."""
    model = shutil.copytree(model, open_path / "model")
    (model / FIRST).chmod(0)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        os.write(writing, " ".join(problem.sentence for problem in read_checkpoint(model).problems).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    assert "permission denied" in said
    assert FIRST in said


def test_extra_files_that_are_no_shards_are_let_be(model):
    write_shard(model / "consolidated.safetensors", SMALL)
    seen = read_checkpoint(model)
    assert (seen.problems, seen.strays) == ((), ())


def test_a_single_file_needs_no_index(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG))
    write_shard(tmp_path / "model.safetensors", SMALL)
    seen = read_checkpoint(tmp_path)
    assert seen.problems == ()
    assert len(seen.tensors) == 4


def test_a_hub_name_leads_to_its_snapshot(tmp_path):
    folder = tmp_path / "hub" / "models--acme--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc123")
    (folder / "snapshots" / "abc123").mkdir(parents=True)
    env = {"HF_HOME": str(tmp_path)}
    assert locate("acme/tiny", env) == folder / "snapshots" / "abc123"
    assert locate("acme/other", env) == Path("acme/other")
    assert locate(str(tmp_path), env) == tmp_path
