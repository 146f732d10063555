"""`provision`: an environment from stand-in wheels and a model from a hub on loopback, at once and each alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.hub_server import HubServer
from process.verbs import on_terminal, verb
from system.standin import wheel

pytestmark = pytest.mark.timeout(240)
SHARD = "model.safetensors"


def arguments(hub: HubServer, folder: Path, version: str) -> list[str]:
    return [
        "provision", hub.repo, "--to", str(folder / "model"), "--vllm", version, "--engine-dir", str(folder / "vllm"),
        "--python", sys.executable, "--pip-args", f"--no-index --find-links={folder}",
        "--fetch-args", f"--endpoint {hub.url}",
    ]  # fmt: skip


def provision(hub: HubServer, folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-m", "vllm_supervisor", *arguments(hub, folder, version)]
    env = {**kept, "HF_HOME": str(folder / "home")}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


def bars(painted: str) -> dict[str, str]:
    """The last that each of the two bars showed, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", painted)
    return dict(re.findall(r"^(environment|model) +[━╸╺ ]+ (\S.*?) *$", plain.replace("\r", "\n"), re.MULTILINE))


def test_the_environment_fails_and_comes_alone_under_two_bars(tmp_path: Path) -> None:
    wheel(tmp_path, "0.32.0")
    with HubServer({"config.json": b"{}", SHARD: bytes(1 << 20)}) as hub:
        narrow = {"HF_HOME": str(tmp_path / "home"), "COLUMNS": "60"}
        code, painted = on_terminal(*arguments(hub, tmp_path, "0.99.0"), deadline_s=200, **narrow)
        assert code == 78, painted
        last = bars(painted)
        assert last["environment"] == "failed: No matching distributi…", "names and bars are shown whole"
        assert last["model"].startswith("fetching: 1.0 MiB of 1.0 MiB "), "the other went on"
        assert "environment: No matching distribution found for vllm==0.99.0" in painted
        assert "is there such a version for this Python" in re.sub(r"\s+", " ", painted)
        assert (tmp_path / "model" / SHARD).stat().st_size == 1 << 20
        assert not (tmp_path / "vllm").exists()
        asked = len(hub.asked)

        done = provision(hub, tmp_path, "0.32.0")
        assert done.returncode == 0, done.stderr
        assert len(hub.asked) == asked, "the model was there already"
        assert (tmp_path / "vllm").readlink() == tmp_path / "vllm-0.32.0"
        first = (tmp_path / "vllm/bin/vllm").read_text().splitlines()[0]
        assert str(tmp_path / "vllm-0.32.0/bin/python") in first
        assert ".new" not in first


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--python", "/nonexistent", "there is no program /nonexistent; give the path of a Python 3"),
        ("--python", "/etc", "there is no program /etc; "),
        ("--python", "/etc/passwd", "/etc/passwd cannot be executed; "),
        ("--pip-args", "--x 'y", 'a quotation mark in "--x \'y" has no other one'),
        ("--fetch-args", '"', "a quotation mark in '\"' has no other one"),
        ("--vllm", "newest", "'newest' is no version; such as --vllm 0.32.0"),
    ],
)
def test_what_cannot_be_meant_is_a_wrong_call_and_nothing_is_begun(
    tmp_path: Path, option: str, given: str, said: str
) -> None:
    options = {"--to": str(tmp_path / "m"), "--vllm": "0.32.0", "--engine-dir": str(tmp_path / "vllm"), option: given}
    done = verb("provision", "org/name", *(word for pair in options.items() for word in pair))
    assert done.code == 64, done
    assert said in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_model_fails_and_comes_alone(tmp_path: Path) -> None:
    wheel(tmp_path, "0.32.0")
    with HubServer({"config.json": b"{}", SHARD: bytes(1 << 20)}) as hub:
        hub.fault(SHARD).damages = 3
        failed = provision(hub, tmp_path, "0.32.0")
        assert failed.returncode == 75
        assert f"model: {SHARD} has arrived 3 times with other bytes" in failed.stderr
        assert "environment: vLLM 0.32.0 is in " in failed.stdout
        made = (tmp_path / "vllm/bin/vllm").stat()

        done = provision(hub, tmp_path, "0.32.0")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "model" / SHARD).read_bytes() == bytes(1 << 20)
        assert len(hub.fetched("config.json")) == 1, "what had arrived is not fetched again"
        assert (tmp_path / "vllm/bin/vllm").stat() == made, "the environment was there already"


def test_the_line_of_progress_stays_one_and_has_an_end(tmp_path: Path) -> None:
    long = "a-name-with-which-no-terminal-of-eighty-columns-has-room-for-a-reason.safetensors"
    with HubServer({long: bytes(1 << 20)}) as hub:
        hub.fault(long).statuses = [503, 503, 404]
        words = ("fetch", hub.repo, "--to", tmp_path / "model", "--endpoint", hub.url)
        code, painted = on_terminal(*words, deadline_s=150, HF_HOME=str(tmp_path / "home"))
    assert code == 78, painted
    *shown, last = painted.replace("\r\n", "\n").split("\r\x1b[K")
    assert max(map(len, shown)) <= 79
    line, said = last.split("\n", 1)
    assert len(line) <= 79
    assert said.startswith(f"vllm-supervisor fetch: {hub.repo}: {long}: {hub.url} says 404; ")
