"""Output that nobody takes, and homes that nobody names: what a caller may do to every verb."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from process.verbs import environment, verb
from vllm_supervisor.daemon.directories import user_state

VERBS = {
    "check": ("{tmp}/wrong.toml", 78),
    "explain": ("{tmp}/end.log", 0),
}


def run(verb_name: str, tmp_path: Path, redirection: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "end.log").write_text("Traceback (most recent call last):\nMemoryError\n")
    (tmp_path / "wrong.toml").write_text("[engine]\n")
    argument = VERBS[verb_name][0].format(tmp=tmp_path)
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'exec "$@" {redirection}',
            "sh",
            sys.executable,
            "-m",
            "vllm_supervisor",
            verb_name,
            argument,
        ],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("name", VERBS)
def test_a_full_disk_behind_the_output_is_said_in_one_sentence(tmp_path, name):
    done = run(name, tmp_path, ">/dev/full")
    assert done.returncode == os.EX_IOERR
    assert done.stderr == f"vllm-supervisor {name}: its output cannot be written: No space left on device\n"


@pytest.mark.parametrize("name", VERBS)
def test_a_closed_output_changes_nothing_else(tmp_path, name):
    done = run(name, tmp_path, ">&-")
    assert (done.returncode, done.stderr) == (VERBS[name][1], "")


def test_as_many_starts_as_one_likes_to_ask_for(tmp_path):
    (tmp_path / "x.toml").write_text('[engine]\nmodel = "/m"\n')
    done = verb("history", tmp_path / "x.toml", "--state-dir", tmp_path / "none", "--last", "9" * 30)
    assert done.code == 0, done


def test_check_takes_a_file_as_every_verb_does(tmp_path):
    (tmp_path / "wrong.toml").write_text("[engine]\n")
    wrong = verb("check", tmp_path / "wrong.toml")
    assert wrong.code == 78
    assert f"{tmp_path}/wrong.toml" in wrong.out
    missing = verb("check", tmp_path / "none.toml")
    assert missing.code == 64
    assert f"{tmp_path}/none.toml does not exist" in missing.err
    assert "none.toml.toml" not in missing.out + missing.err


def test_without_a_home_the_state_lies_in_the_home_of_the_passwd():
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_state({}) == home / ".local/state/vllm-supervisor"
    assert user_state({"HOME": "/h"}) == Path("/h/.local/state/vllm-supervisor")
    assert user_state({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/vllm-supervisor")
