"""What identifies a checkpoint and a machine."""

import socket

import pytest

from vllm_supervisor.adapters.identity import identity, only_here, own_address
from vllm_supervisor.adapters.inventory import hash_of


def test_a_checkpoint_is_known_by_its_small_files_and_the_sizes_of_its_shards(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model-1.safetensors").write_bytes(b"12345")
    assert identity(one, hash_of) == identity(other, hash_of)
    assert set(identity(one, hash_of)) == {"config.json", "shards"}
    assert identity(one, hash_of)["shards"].startswith("1 of 5 bytes (")
    (other / "model-1.safetensors").write_bytes(b"123456")
    assert {
        name for name in identity(one, hash_of) if identity(one, hash_of)[name] != identity(other, hash_of)[name]
    } == {"shards"}
    (other / "config.json").write_text("{ }")
    assert identity(one, hash_of)["config.json"] != identity(other, hash_of)["config.json"]
    assert identity(tmp_path / "none", hash_of) == {}


def test_the_own_address_is_that_of_the_way_to_the_head():
    assert own_address("127.0.0.1", 9479) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "found", "expected"),
    [
        ("gpu01", ["127.0.1.1"], "127.0.1.1"),
        ("gpu01", ["127.0.1.1", "10.0.0.1"], ""),
        ("gpu01", ["10.0.0.1"], ""),
        ("localhost", ["127.0.0.1"], ""),
        ("127.0.0.1", ["127.0.0.1"], ""),
    ],
)
def test_a_name_that_means_the_loopback_is_seen(monkeypatch, host, found, expected):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert only_here(host) == expected


def test_a_name_that_nobody_knows_is_neither(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert only_here("gpu99") == own_address("gpu99", 9479) == ""
