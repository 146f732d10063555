"""What `fetch` is given wrongly, and a hub that is not there: one sentence, the right code, nothing written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.hub_server import HubServer
from process.verbs import environment, verb

ADDRESSES = ["bogus", "ftp://hub", "http://", "https://a b", "http://hub:0", "http://hub:99999", "hub.example/x"]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("way", ["--endpoint", "HF_ENDPOINT"])
def test_what_is_no_address_is_a_wrong_call(tmp_path: Path, address: str, way: str) -> None:
    option, env = ([way, address], {}) if way == "--endpoint" else ([], {way: address})
    done = verb("fetch", "maker/model", "--to", tmp_path / "model", *option, **env)
    assert done.code == 64
    assert (
        done.err == f"vllm-supervisor fetch: {way} must be an address such as https://huggingface.co, not {address!r}\n"
    )
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["a b", "/models/kimi", "a/b/c", "maker/", "maker/model.", "../x", "é"])
def test_what_is_no_name_of_a_model_is_a_wrong_call(tmp_path: Path, name: str) -> None:
    done = verb("fetch", name, "--to", tmp_path / "model")
    assert done.code == 64
    assert done.err == (
        f"vllm-supervisor fetch: MODEL is a name at the hub such as nvidia/Kimi-K2.5-NVFP4, not {name!r}\n"
    )
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("option", "given"), [("--rate", "fast"), ("--workers", "0"), ("--workers", "many")])
def test_other_wrong_calls_write_nothing_either(tmp_path: Path, option: str, given: str) -> None:
    done = verb("fetch", "maker/model", "--to", tmp_path / "model", option, given)
    assert done.code == 64
    assert option in done.err
    assert not (tmp_path / "model").exists()


def test_a_hub_that_cannot_be_reached_is_named_with_the_remedy(tmp_path: Path) -> None:
    done = verb("fetch", "maker/model", "--to", tmp_path, "--endpoint", "http://me:secret@127.0.0.1:9/mirror")
    assert done.code == 75
    assert re.fullmatch(
        r"vllm-supervisor fetch: maker/model: http://127.0.0.1:9/mirror cannot be reached \(.*Connection refused\); look "
        r"after the network or its proxy, or name a mirror with --endpoint\n",
        done.err,
    ), done.err


def test_a_directory_that_is_mounted_read_only_can_be_verified_and_not_fetched_into(tmp_path: Path) -> None:
    place, names = tmp_path / "model", ["config.json", "model.safetensors"]
    with HubServer({name: name.encode() for name in names}) as hub:
        assert verb("fetch", hub.repo, "--to", place, "--endpoint", hub.url).code == 0
        alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        closed = f'mount --bind {place} {place} && mount -o remount,bind,ro {place} && exec "$@"'

        def there(*options: str) -> subprocess.CompletedProcess[str]:
            fetch = [sys.executable, "-m", "vllm_supervisor", "fetch", hub.repo, "--to", str(place), *options]
            command = [*alone, "sh", "-c", closed, "sh", *fetch]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)

        for options in (["--verify", "--offline"], ["--verify", "--endpoint", hub.url]):
            done = there(*options)
            assert (done.returncode, done.stdout) == (0, "all 2 files have the right hash\n"), done.stderr
        done = there("--offline")
        assert (done.returncode, done.stdout) == (0, "all 2 files have the right size\n"), done.stderr
        (place / names[1]).write_bytes(b"?" * len(names[1]))
        assert there("--verify", "--offline").stdout == f"damaged: {names[1]}\n"
        done = there("--endpoint", hub.url)
        assert done.returncode == 78
        assert done.stderr == f"vllm-supervisor fetch: {place} cannot be written: Read-only file system\n"
