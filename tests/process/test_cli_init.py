"""`init` as it is run: both files or none, and what it writes is a configuration."""

from __future__ import annotations

import json
import os
import stat

import pytest

from process.fakes import write_model
from process.verbs import verb
from vllm_supervisor.commands import init
from vllm_supervisor.config import Settings, load, load_env


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


def test_it_writes_a_configuration_and_its_environment(tmp_path, model):
    target = tmp_path / "mine.toml"
    done = verb("init", "--output", target, "--model", model, "--port", "8123", "--device", "cpu")
    assert done.code == 0, done.err
    assert done.out == f"{target}\n"
    assert "next: " in done.err
    settings = load(target)
    assert isinstance(settings, Settings), settings
    assert (settings.engine.port, settings.engine.model) == (8123, str(model))
    assert settings.engine.served_model_name == "mine"
    assert settings.engine.args == {"max-model-len": 131072}
    assert load_env(target.with_suffix(".env"), required=True) == {}
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert sorted(os.listdir(tmp_path)) == ["mine.env", "mine.toml", "model"]


def test_code_of_the_checkpoint_is_trusted_only_where_there_is_some(tmp_path, model):
    assert verb("init", "--output", tmp_path / "a.toml", "--model", model).code == 0
    assert "\n# trust-remote-code = true" in (tmp_path / "a.toml").read_text()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "code.Config"}}))
    assert verb("init", "--output", tmp_path / "b.toml", "--model", model).code == 0
    assert "\ntrust-remote-code = true" in (tmp_path / "b.toml").read_text()


def test_a_directory_that_is_not_there_is_named_and_no_file_of_ours(tmp_path, model):
    done = verb("init", "--output", tmp_path / "none" / "x.toml", "--model", model, "--device", "cpu")
    assert done.code == 64
    assert done.err == (
        f"vllm-supervisor init: {tmp_path}/none/x.toml cannot be written: there is no directory {tmp_path}/none; make "
        "it, or use another --output\n"
    )


@pytest.mark.parametrize(("option", "key"), [("--host", "engine.host"), ("--engine", "engine.command")])
def test_what_check_would_call_wrong_is_not_written(tmp_path, model, option, key):
    done = verb("init", "--output", tmp_path / "x.toml", "--model", model, "--device", "cpu", option, "")
    assert done.code == 64
    assert done.err.startswith(f"vllm-supervisor init: {key} must ")
    assert sorted(os.listdir(tmp_path)) == ["model"]


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", 64), ("0.0.0.0", 64), ("::", 64), ("127.0.0.2", 0)])
def test_one_port_on_addresses_that_do_not_meet_is_two(tmp_path, model, host, code):
    ports = ("--port", "9477", "--metrics-port", "9477")
    done = verb("init", "--output", tmp_path / "x.toml", "--model", model, "--device", "cpu", "--host", host, *ports)
    assert done.code == code, done
    assert ("both say 9477" in done.err) is bool(code)


@pytest.mark.parametrize("there", ["mine.toml", "mine.env"])
def test_nothing_is_ever_overwritten(tmp_path, model, there):
    (tmp_path / there).write_text("precious")
    done = verb("init", "--output", tmp_path / "mine.toml", "--model", model)
    assert done.code == 64
    assert done.err == (
        f"vllm-supervisor init: {tmp_path / there} exists and is not overwritten: move it away, or choose another name\n"
    )
    assert (tmp_path / there).read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == sorted([there, "model"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--output", "{tmp}/x.toml", "--model", "{tmp}/nothing"], 78, "give the directory of a checkpoint as --model"),
        (["--output", "{tmp}/x.conf", "--model", "{tmp}/model"], 64, "cannot be an instance"),
        (["--output", "{tmp}/x.toml", "--model", "{tmp}/model", "--port", "70000"], 64, "--port must be from 1 to 65535"),
        (["../evil", "--model", "{tmp}/model"], 64, "cannot be an instance"),
        (["a/b", "--model", "{tmp}/model"], 64, "cannot be an instance"),
        (["--output", "{tmp}/x.toml", "--model", "{tmp}/model", "--port", "81", "--metrics-port", "81"], 64, "both say 81"),
        (["--output", "{tmp}/no/x.toml", "--model", "{tmp}/model"], 64, "cannot be written"),
        (["--model", "{tmp}/model"], 64, "--help"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_and_writes_nothing(tmp_path, model, arguments, code, words):
    done = verb("init", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert done.code == code
    assert done.err.count("\n") == 1
    assert words in done.err
    assert os.listdir(tmp_path) == ["model"]


def test_a_damaged_config_is_named(tmp_path, model):
    (model / "config.json").write_text("{")
    done = verb("init", "--output", tmp_path / "x.toml", "--model", model)
    assert done.code == 78
    assert "config.json cannot be used" in done.err


def test_a_file_that_comes_into_being_meanwhile_is_kept_and_the_other_taken_back(tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "a.env"
    second.write_text("precious")
    with pytest.raises(init.InitError, match=r"a\.env exists and is not overwritten"):
        init._write({first: ("new", 0o644), second: ("new", 0o644)})
    assert second.read_text() == "precious"
    assert os.listdir(tmp_path) == ["a.env"]
