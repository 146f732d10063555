"""What `fetch` is given wrongly, and a hub that is not there: one sentence, the right code, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from process.verbs import verb

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
