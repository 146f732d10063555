"""What an operator gets wrong with any verb: one sentence with the remedy, and the code of the table."""

from __future__ import annotations

import json
import os
import re

import pytest

from process.verbs import verb
from process.waiting import free_port
from vllm_supervisor import cli
from vllm_supervisor.adapters import systemctl
from vllm_supervisor.daemon.instance import read_instance

PYTHON = re.compile(r"Errno|codec|Expecting|indices|not str|could not convert|'value'|Error\\b|<class")


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "dead.toml"
    file.write_text(f'[engine]\nmodel = "/m"\ndevice = "cpu"\nport = {free_port()}\n')
    return file


@pytest.mark.parametrize(
    ("given", "hint"),
    [("statsu", "did you mean `status`?"), ("bogus", "`vllm-supervisor --help` lists them")],
)
def test_a_verb_that_is_none_shows_no_internal_ones(given, hint):
    done = verb(given)
    assert (done.code, done.out) == (64, "")
    assert done.err == f"vllm-supervisor: there is no verb {given!r}; {hint}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["bogus"], ["--bogus"], ["completion"], ["status", "--bogus"]])
def test_the_verbs_of_our_own_processes_are_shown_nowhere(words):
    done = verb(*words)
    assert not re.search("|".join(cli.INTERNAL), done.out + done.err), done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ": VERB must be given; see `vllm-supervisor --help`"),
        (["init"], " init: --model must be given; see `vllm-supervisor init --help`"),
        (["init", "x", "--model", "m", "--port", "abc"], " init: --port takes a whole number, not 'abc'; see "),
        (["init", "x", "--model", "m", "--output", "o"], " init: "),
        (["wait", "x", "--timeout", "abc"], " wait: --timeout takes a number, not 'abc'; see "),
        (["wait", "x", "--timeout"], " wait: --timeout takes a value; see "),
        (["wait", "x", "--quiet=1"], " wait: --quiet takes no value, not '1'; see "),
        (["run", "--config", "x", "--log-level", "loud"], " run: --log-level takes one of debug, info, warning, error, not loud; "),
        (["incident", "drop"], " incident: ACTION takes one of list, show, export, not drop; see "),
        (["status", "--bogus"], " status: --bogus means nothing here; see `vllm-supervisor status --help`"),
        (["completion", "x"], " completion: x means nothing here; see "),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_told_in_our_words(words, said):
    done = verb(*words)
    assert (done.code, done.out) == (64, "")
    assert done.err.startswith(f"vllm-supervisor{said}")
    assert done.err.count("\n") == 1
    assert not re.search(r"argument -|invalid|arguments are|choose from|unrecognized", done.err), done.err


def test_every_verb_says_its_exit_codes():
    actions = cli.parser()._actions
    verbs = next(action for action in actions if action.dest == "verb").choices
    assert set(verbs) == set(cli.VERBS)
    assert [name for name, one in verbs.items() if not (one.epilog or "").startswith("Exit codes: 0 ")] == []


@pytest.mark.parametrize(
    ("words", "does"),
    [
        (["restart", "{}"], "end its `vllm-supervisor run` with Ctrl-C and start it again with"),
        (["restart", "{}", "--dry-run"], "and start it again with"),
        (["restart", "{}", "--resume"], "and start it again with"),
        (["snapshot", "{}", "--", "true"], "run the command yourself, then start it again with"),
        (["upgrade", "{}", "--vllm", "0.32.0"], "`make engine VLLM=0.32.0`"),
    ],
)
def test_an_operation_without_systemd_says_how_to_do_it_by_hand(config, words, does, monkeypatch, capsys):
    monkeypatch.setattr(systemctl, "runs", lambda: False)
    code = cli.main([word.format(config) for word in words])
    out, err = capsys.readouterr()
    assert (code, out) == (10, ""), err
    assert err.startswith(f"vllm-supervisor {words[0]}: systemd does not run here, and {words[0]} works through it; ")
    assert does in err
    assert f"`vllm-supervisor run --config {config}`" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["reload"], ["wait", "--timeout", "0.1"]], ids=lambda words: words[0])
def test_what_does_not_run_is_told_with_the_way_to_start_it(config, words):
    done = verb(words[0], config, *words[1:])
    assert done.code == {"reload": 64, "wait": 75}[words[0]], done
    assert done.err.startswith(f"vllm-supervisor {words[0]}: dead ")
    assert f"start it with `vllm-supervisor run --config {config}`" in done.err


def test_status_shows_what_is_wrong_with_the_configuration(config):
    assert verb("status", config).out == "dead: not running, never started\n"
    config.write_text('[engin]\nmodel = "/m"\n[stop]\ngrace_s = -1\n')
    done = verb("status", config)
    assert done.code == 3
    assert done.out.splitlines() == [
        "dead: not running, never started",
        *(f"fault      {problem}" for problem in read_instance(config)),
    ]
    assert len(json.loads(verb("status", config, "--json").out)["problems"]) == 2
    config.write_text("[engine]\nmodel = '/m'\n" + "".join(f"x{number} = 1\n" for number in range(8)))
    assert verb("status", config).out.splitlines()[-1] == "fault      and 3 more: `vllm-supervisor check` names all"


@pytest.mark.parametrize("name", ["check", "status", "smoke", "warm", "loaders", "history"])
def test_a_unit_that_holds_weights_leads_to_the_instance_whose_they_are(config, name):
    done = verb(name, config.with_name("dead-weights.toml"))
    assert done.code in {64, 78}, done
    assert "name dead" in done.out + done.err
    assert "init" not in done.out + done.err


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\x00",
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"at": 1}\n',
        b'{"at": "x", "value": {"type": "Tick"}}\n',
        b'{"at": 1, "value": 3}\n',
        b'{"at": 1, "value": {"type": "Foo"}}\n',
        b'{"at": 1, "value": {"type": "CauseFound"}}\n',
        b'{"at": 1, "value": {"type": ["x"]}}\n',
        b'{"at": NaN, "value": {"type": "Tick"}}\n',
        b'{"at": 1, "value": {"type": "Tick"}}\n',
        None,
    ],
)
def test_what_is_no_recording_is_told_in_words(tmp_path, text):
    file = tmp_path / "recording"
    if text is None:
        file = tmp_path
    else:
        file.write_bytes(text)
    done = verb("replay", file)
    assert (done.code, done.out) == (64, "")
    assert done.err.startswith(f"vllm-supervisor replay: {file} ")
    assert done.err.count("\n") == 1
    assert not PYTHON.search(done.err), done.err
    assert os.fspath(file) in done.err
