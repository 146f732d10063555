"""`explain` as an operator runs it: files, packed files, standard input, a unit, and what cannot be read."""

import argparse
import gzip
import io
import json
import sys
import tomllib
from pathlib import Path

import pytest

from vllm_supervisor.commands import explain

FAILURES = Path(__file__).parents[1] / "corpus" / "failure-logs"
LOG = FAILURES / "unsupported-quantization-capability-v0.16.log"
EXPECTED = tomllib.loads(LOG.with_suffix(".toml").read_text())


def call(*argv):
    parser = argparse.ArgumentParser()
    explain.add_parser(parser.add_subparsers(required=True))
    return explain.run(parser.parse_args(["explain", *argv]))


def test_a_file_is_explained_for_people(capsys):
    assert call(str(LOG)) == 0
    out, err = capsys.readouterr()
    assert out.startswith("unsupported-quantization (permanent)\n")
    assert "  phase     configuring\n" in out
    assert "capability 9.0" in out
    assert "\x1b" not in out
    assert err == ""


@pytest.mark.parametrize("log", sorted(FAILURES.glob("*.log")), ids=lambda path: path.stem)
def test_json_has_exactly_five_keys(log, capsys):
    expected = tomllib.loads(log.with_suffix(".toml").read_text())
    assert call("--json", str(log)) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["reason", "class", "phase", "evidence", "advice"]
    assert {key: found[key] for key in ("reason", "class", "phase", "evidence")} == {
        key: expected[key] for key in ("reason", "class", "phase", "evidence")
    }


def test_a_packed_file_is_unpacked(tmp_path, capsys):
    packed = tmp_path / "engine.log.gz"
    packed.write_bytes(gzip.compress(LOG.read_bytes()))
    assert call(str(packed), "--json") == 0
    assert json.loads(capsys.readouterr().out)["evidence"] == EXPECTED["evidence"]


def test_standard_input_is_read(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG.read_bytes())))
    assert call("-", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "unsupported-quantization"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "there is nothing in", id="empty"),
        pytest.param("\n  \n\x1b[0m\n", "there is nothing in", id="blank"),
        pytest.param("Dear diary,\nINFO: nothing happened\n", "is not the log of an engine", id="prose"),
        pytest.param("#!/bin/sh\nexit 1\n", "is not the log of an engine", id="a script"),
        pytest.param("\x7fELF\x02\x01\0\0\n\xff\xfe\n", "is not the log of an engine", id="binary"),
        pytest.param("vllm-supervisor: port-in-use (exit 75)\n", "last one is: port-in-use (exit 75)", id="only ours"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["", "json"])
def test_what_is_no_log_of_an_engine_is_one_sentence_and_64(text, said, options, tmp_path, capsys):
    file = tmp_path / "some.log"
    file.write_text(text, encoding="latin-1")
    assert call(str(file), *options) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
    assert str(file) in err


def test_nothing_from_standard_input_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert call("-") == 64
    assert "there is nothing in standard input" in capsys.readouterr().err


def test_what_cannot_be_read_is_one_sentence_and_64(tmp_path, capsys):
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(LOG.read_bytes())[:200])
    for source in (str(tmp_path / "missing.log"), "no such unit", str(tmp_path), str(damaged)):
        assert call(source) == 64
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("vllm-supervisor explain: ")


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """A journalctl of ours in PATH, which writes down how it was called."""

    def install(text):
        (tmp_path / "text").write_text(text)
        script = tmp_path / "journalctl"
        script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/args\ncat {tmp_path}/text\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "args"

    return install


def test_a_unit_is_read_from_the_journal_with_the_kernels_lines(journal, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    args = journal((FAILURES / "gpu-lost-xid79-v0.28.log").read_text())
    assert call("kimi", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "gpu-lost"
    asked = args.read_text().split()
    assert "_SYSTEMD_UNIT=kimi.service" in asked
    assert "_TRANSPORT=kernel" in asked
    assert "-b" in asked


def test_a_unit_without_lines_is_said(journal, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    journal("")
    assert call("nosuch.service") == 64
    assert "nosuch.service" in capsys.readouterr().err


def test_a_unit_that_never_started_an_engine_is_said(journal, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    gone = "kimi.service: Failed at step EXEC spawning /usr/local/bin/vllm-supervisor"
    journal(f"May 05 05:09:08 gpu2 systemd[1]: {gone}\nMay 05 05:09:09 gpu2 kernel: vllm: something\n")
    assert call("kimi") == 64
    assert f"no line of an engine of kimi; the last one is: {gone}\n" in capsys.readouterr().err


def test_colours_only_where_they_are_wanted(monkeypatch):
    cause = explain.explain([LOG.read_bytes()])
    assert explain.as_text(cause, colour=True).startswith("\x1b[31;1munsupported-quantization\x1b[0m")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not explain._wants_colour()
    monkeypatch.delenv("NO_COLOR")
    assert explain._wants_colour()
