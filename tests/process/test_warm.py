"""`warm`: weights in memory, modules compiled, caches told; nothing is started."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from process.harness import write_config
from process.page_cache import MOST, mostly
from process.verbs import verb
from vllm_supervisor.adapters.bytecode import modules
from vllm_supervisor.adapters.readahead import cache

MIB = 1 << 20
SHARD = 16 * MIB


@pytest.fixture
def instance():
    """A configuration with an environment of its own and four shards; /tmp may lie in memory, /var/tmp does not."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    site = folder / f"engine/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (site / "some").mkdir(parents=True)
    (site / "some/__init__.py").write_text("value = 1\n")
    (site / "some/template.py").write_text("{{ no python }}\n")
    (site / "alone.py").write_text("raise SystemExit('a module must not be run to be compiled')\n")
    program = folder / "engine/bin/vllm"
    program.parent.mkdir()
    (folder / "engine/bin/python").symlink_to(sys.executable)
    program.write_text(f"#!{folder}/engine/bin/python\n")
    program.chmod(0o755)
    path = write_config(folder, engine={"command": [str(program), "serve"], "env": {"VLLM_CACHE_ROOT": f"{folder}/v"}})
    (folder / "v/torch_compile_cache").mkdir(parents=True)
    (folder / "v/torch_compile_cache/graph").write_bytes(bytes(1000))
    (folder / "v/modelinfos").mkdir()
    (folder / "model/model.safetensors").unlink()
    for number in range(1, 5):
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}).encode()
        with (folder / f"model/model-{number}.safetensors").open("wb") as file:
            file.write((92).to_bytes(8, "little") + header.ljust(92) + os.urandom(SHARD))
            os.fsync(file.fileno())
        cache.give_back(str(folder / f"model/model-{number}.safetensors"))
    yield path
    shutil.rmtree(folder)


def test_all_that_a_start_reads_is_there_afterwards(instance):
    folder = instance.parent
    done = verb("warm", instance, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    total = 4 * (SHARD + 100)
    assert said["weights"]["total_bytes"] == total
    assert said["weights"]["read_bytes"] + said["weights"]["cached_bytes"] == total
    assert said["weights"]["read_bytes"] > total / 2
    assert said["weights"]["sentence"].startswith("all 64.0 MiB in 4 shards in memory: ")
    there = [cache.cached_share(str(shard), shard.stat().st_size) for shard in folder.glob("model/*.safetensors")]
    assert mostly(there), there
    assert {key: said["modules"][key] for key in ("modules", "compiled", "left")} == {
        "modules": 3,
        "compiled": 2,
        "left": 1,
    }
    (site,) = folder.glob("engine/lib/*/site-packages")
    assert [path.name for path in modules(site)[1]] == ["template.py"]
    states = {row["name"]: (row["state"], row["bytes"]) for row in said["caches"]}
    assert states["torch-compile"] == ("warm", 1000)
    assert states["model-infos"] == ("cold", 0)


def test_a_second_time_there_is_nothing_left_to_do(instance):
    assert verb("warm", instance).code == 0
    done = verb("warm", instance)
    assert done.code == 0, done.err
    assert "3 modules in" in done.out
    assert "none compiled now, 1 is no valid Python" in done.out
    (found,) = re.findall(r"read, ([0-9.]+) MiB found there", done.out)
    assert MOST * 64 <= float(found) <= 64
    assert "cache      torch-compile        warm     1000 B in 1 file," in done.out


def test_an_administrator_with_a_closed_umask_makes_nothing_that_the_service_cannot_read(instance):
    before = os.umask(0o077)
    try:
        assert verb("warm", instance).code == 0
    finally:
        os.umask(before)
    (kept,) = instance.parent.glob("engine/lib/*/site-packages/some/__pycache__")
    assert kept.stat().st_mode & 0o777 == 0o755
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in kept.iterdir())


def test_a_cache_that_this_engine_never_fills_is_not_told_as_missing(instance):
    def names():
        return {
            row["name"]: row["path"] for row in json.loads(verb("warm", instance, "--json", **nobody).out)["caches"]
        }

    nobody = {"USER": "", "LOGNAME": "", "LNAME": "", "USERNAME": "", "TMPDIR": "/tmp"}
    compiles = names()
    assert "torch-compile" in compiles
    assert compiles["torch-inductor"] == f"/tmp/torchinductor_{pwd.getpwuid(os.getuid()).pw_name}"
    instance.write_text(instance.read_text().replace("[engine.args]\n", "[engine.args]\nenforce-eager = true\n"))
    assert "enforce-eager" in instance.read_text()
    assert "torch-compile" not in names()


def test_weights_that_another_unit_holds_are_read_for_its_start(instance):
    instance.write_text(instance.read_text() + "[weights]\nheld = true\n")
    done = verb("warm", instance)
    assert done.code == 0, done.err
    assert "all 64.0 MiB in 4 shards in memory: " in done.out


def test_what_does_not_fit_is_left_out_and_said(instance):
    instance.write_text(instance.read_text() + '[load]\nreadahead = "20MiB"\n')
    done = verb("warm", instance)
    assert done.code == 0, done.err
    assert "load.readahead allows, too little for even 64.0 MiB" in done.out


def test_a_checkpoint_that_is_not_there_is_one_sentence(instance):
    shutil.rmtree(instance.parent / "model")
    done = verb("warm", instance)
    assert done.code == 78
    assert "model cannot be read: No such file or directory" in done.out
    assert verb("warm", "/nowhere/at-all.toml").code == 64
