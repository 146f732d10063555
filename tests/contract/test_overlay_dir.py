"""Overlays as real directories: the checkpoint stays as it is, foreign directories too."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import pytest

from lab.sparse_checkpoint import CONFIG, write_checkpoint
from vllm_supervisor.adapters import overlay_dir
from vllm_supervisor.adapters.checkpoint import read_checkpoint
from vllm_supervisor.adapters.overlay_dir import OverlayError, build, remove
from vllm_supervisor.commands import overlay

SMALL = [("model.layers.0.mlp.up_proj.weight", "BF16", [32, 16])]


@pytest.fixture
def model(tmp_path):
    write_checkpoint(tmp_path / "m", shards=1, config=CONFIG | {"num_hidden_layers": 2}, all_tensors=SMALL)
    (tmp_path / "m" / "sub").mkdir()
    return tmp_path / "m"


def snapshot(folder):
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.lstat().st_ino,
            path.is_file() and path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
    }


def run(capsys, *arguments):
    parser = argparse.ArgumentParser()
    overlay.add_parser(parser.add_subparsers())
    args = parser.parse_args(["overlay", *map(str, arguments)])
    code = args.run(args)
    out, err = capsys.readouterr()
    return code, out, err


def test_documents_are_changed_and_the_rest_is_linked(model, tmp_path):
    before = snapshot(model)
    made, written = build(model, tmp_path / "o")
    assert written
    assert snapshot(model) == before, "the checkpoint is never written"
    assert set(os.listdir(tmp_path / "o")) == set(os.listdir(model)) | {".vllm-supervisor-overlay.json"}
    assert "kv_cache_scheme" not in (tmp_path / "o" / "config.json").read_text()
    assert "kv_cache_quant_algo" not in (tmp_path / "o" / "hf_quant_config.json").read_text()
    links = [path for path in (tmp_path / "o").iterdir() if path.is_symlink()]
    assert len(links) == len(made.links) == 5
    assert all(path.readlink() == model / path.name for path in links)
    assert '-    "kv_cache_quant_algo": "FP8",' in made.diff
    seen = read_checkpoint(tmp_path / "o")
    assert seen.problems == ()


def test_a_second_time_nothing_is_written(model, tmp_path):
    build(model, tmp_path / "o")
    before = snapshot(tmp_path / "o")
    assert build(model, tmp_path / "o")[1] is False
    assert snapshot(tmp_path / "o") == before


@pytest.mark.parametrize("exchange", [True, False])
def test_a_changed_checkpoint_changes_the_overlay_at_the_same_path(model, tmp_path, monkeypatch, exchange):
    build(model, tmp_path / "o")
    (model / "chat_template.jinja").write_text("{{ x }}")
    (model / "config.json").write_text(json.dumps({"new": 1, "kv_cache_scheme": {}}))
    if not exchange:
        monkeypatch.setattr(overlay_dir.ctypes, "CDLL", lambda *_, **__: object())
    assert build(model, tmp_path / "o")[1] is True
    assert (tmp_path / "o" / "chat_template.jinja").read_text() == "{{ x }}"
    assert json.loads((tmp_path / "o" / "config.json").read_text()) == {"new": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "o"], "no draft is left"


def test_drafts_of_dead_processes_are_swept(model, tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    draft = tmp_path / f".o.draft-{dead.pid}"
    draft.mkdir()
    (draft / "config.json").symlink_to(model / "config.json")
    build(model, tmp_path / "o")
    assert not draft.exists()
    assert (model / "config.json").exists()


def test_a_foreign_target_is_refused(model, tmp_path, capsys):
    foreign = tmp_path / "f"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    code, _, err = run(capsys, model, "--output", foreign)
    assert code == 78
    assert "no overlay of ours" in err
    assert (foreign / "precious").read_text() == "x"
    assert run(capsys, "--remove", "--output", foreign)[0] == 78
    (tmp_path / "file").write_text("x")
    assert run(capsys, model, "--output", tmp_path / "file")[0] == 78
    (tmp_path / "link").symlink_to(foreign)
    assert run(capsys, model, "--output", tmp_path / "link")[0] == 78


@pytest.mark.parametrize("place", ["m", "m/o", "m/sub/o", "via/o", "."])
def test_a_target_that_touches_the_checkpoint_is_refused(model, tmp_path, place):
    (tmp_path / "via").symlink_to(model)
    before = snapshot(model)
    with pytest.raises(OverlayError):
        build(model, tmp_path / place)
    assert snapshot(model) == before


def test_a_hub_snapshot_is_linked_and_its_cache_not_written(tmp_path):
    folder = tmp_path / "hub" / "models--acme--tiny"
    blobs, snap = folder / "blobs", folder / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    write_checkpoint(snap, shards=1, config={"kv_cache_scheme": {"num_bits": 8}}, all_tensors=SMALL)
    for path in list(snap.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(Path("../../blobs") / path.name)
    before = snapshot(folder)
    with pytest.raises(OverlayError, match="inside the checkpoint"):
        build(snap, blobs / "o")
    made, _ = build(snap, tmp_path / "o")
    assert snapshot(folder) == before
    assert json.loads((tmp_path / "o" / "config.json").read_text()) == {}
    assert made.links["tokenizer_config.json"] == str(snap / "tokenizer_config.json")


def test_diff_writes_nothing(model, tmp_path, capsys):
    code, out, _ = run(capsys, model, "--output", tmp_path / "o", "--diff")
    assert code == 0
    assert '-    "kv_cache_scheme": {' in out
    assert out.startswith("--- checkpoint/config.json\n+++ overlay/config.json\n")
    assert not (tmp_path / "o").exists()


def test_remove_takes_the_overlay_and_nothing_else(model, tmp_path, capsys):
    build(model, tmp_path / "o")
    before = snapshot(model)
    assert run(capsys, model, "--remove", "--output", tmp_path / "o")[0] == 0
    assert not (tmp_path / "o").exists()
    assert snapshot(model) == before
    code, _, err = run(capsys, "--remove", "--output", tmp_path / "o")
    assert code == 78
    assert "does not exist" in err


def test_what_an_operator_put_into_an_overlay_is_never_lost(model, tmp_path):
    build(model, tmp_path / "o")
    (tmp_path / "o" / "notes.txt").write_text("mine")
    for act in (remove, lambda path: build(model, path)):
        with pytest.raises(OverlayError, match=r"notes\.txt"):
            act(tmp_path / "o")
    assert (tmp_path / "o" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments", [[], ["--output", "x"], ["m"], ["--remove"], ["m", "--diff", "--remove", "--output", "x"]]
)
def test_a_wrong_command_line_is_64(capsys, arguments):
    assert run(capsys, *arguments)[0] == 64


def test_a_model_that_is_none_is_78(tmp_path, capsys):
    for path in (tmp_path / "none", tmp_path):
        code, _, err = run(capsys, path, "--output", tmp_path / "o")
        assert code == 78
        assert len(err.splitlines()) == 1
