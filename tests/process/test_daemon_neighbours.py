"""Two instances on one machine: one waits while the other loads, and the table and the pages show both."""

from __future__ import annotations

import contextlib
import json

import psutil

from process.harness import Daemon, write_config
from process.verbs import verb


def instance(tmp_path, name, fake):
    """A daemon of its own name, whose checkpoint is too large to be cached beside another one."""
    folder = tmp_path / name
    folder.mkdir()
    config = write_config(folder, fake, load={"readahead": "off"})
    config = config.rename(folder / f"{name}.toml")
    with (folder / "model" / "large.bin").open("wb") as file:
        file.truncate(int(psutil.virtual_memory().total * 0.8))
    runtime = tmp_path / "vllm-supervisor" / name
    runtime.mkdir(parents=True)
    daemon = Daemon(config, folder, env={"RUNTIME_DIRECTORY": str(runtime)})
    daemon.runtime = runtime
    return daemon


def claimed(daemon):
    path = daemon.runtime / "claim.json"
    return json.loads(path.read_text()) if path.exists() else {}


def own(runtime):
    """Every place where instances are looked for, so that none but this test's is found."""
    return {name: str(runtime) for name in ("XDG_RUNTIME_DIR", "HOME", "TMPDIR")}


def phases(runtime):
    """The phase of each instance, None where it gave no answer."""
    told = verb("status", "--json", **own(runtime)).out
    return {row["name"]: (row["status"] or {}).get("phase") for row in json.loads(told)["instances"]}


def both_shown(runtime):
    done = verb("status", **own(runtime))
    assert done.code == 3
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    return "launching" in lines["a"] and "Waiting for a to finish loading" in lines["b"]


def test_the_second_load_waits_for_the_first_and_both_are_shown(tmp_path):
    first, second = (instance(tmp_path, "a", {"pace": "manual"}), instance(tmp_path, "b", {"pace": 0.2}))
    with contextlib.ExitStack() as stack:
        stack.enter_context(first)
        first.wait_phase("launching")
        stack.enter_context(second)
        second.wait_phase("waiting")
        assert "Waiting for a to finish loading" in second.status()["status"]
        assert claimed(first)["loading"]
        assert claimed(second)["waiting"]
        page = second.get("/").body.decode()
        assert f'<a href="http://127.0.0.1:{first.port}/">a</a>' in page
        # An instance that a busy machine keeps from answering at once is told as such: asked again, both answer.
        second.wait(lambda: both_shown(tmp_path), "both in the text")
        second.wait(lambda: phases(tmp_path) == {"a": "launching", "b": "waiting"}, "both in the data")
        # A dead holder releases: no word of farewell is needed.
        first.kill()
        second.wait_phase("ready")
        assert "its turn to load, after" in second.log()
        assert not claimed(second)["loading"]
        second.sigterm()
        assert second.wait_exit() == 0
        assert not (second.runtime / "claim.json").exists()
