"""`fetch` against a hub on loopback that drops connections, lies, refuses and serves damaged bytes."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.hub_server import COMMIT, HubServer
from process.waiting import wait_until

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
SIZE = 3 << 20
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    noise = random.Random(7)
    files = {name: noise.randbytes(SIZE) for name in SHARDS}
    files |= {"config.json": b'{"model_type": "x"}', "sub/tokenizer.json": b"{}"}
    with HubServer(files) as server:
        yield server


class Directory:
    """A download's directory and the command for it."""

    def __init__(self, hub: HubServer, path: Path) -> None:
        self.hub, self.path = hub, path

    def command(self, *more: str) -> list[str]:
        main = [sys.executable, "-m", "vllm_supervisor", "fetch", self.hub.repo, "--to", str(self.path)]
        return [*main, *more]

    def env(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return {**kept, "HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.path.parent / "home"), **more}

    def fetch(self, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*more), env=self.env(**env), capture_output=True, text=True, timeout=150, check=False
        )

    def whole(self) -> bool:
        return all((self.path / name).read_bytes() == content for name, content in self.hub.files.items())


@pytest.fixture
def model(hub: HubServer, tmp_path: Path) -> Directory:
    return Directory(hub, tmp_path / "model")


def test_it_arrives_whole_several_at_once_and_a_second_call_transfers_nothing(hub: HubServer, model: Directory) -> None:
    done = model.fetch()
    assert done.returncode == 0, done.stderr
    assert "is whole: maker/model at 0123456789ab, 5 of 5 files fetched" in done.stdout
    assert model.whole()
    before = len(hub.asked)
    again = model.fetch()
    assert (again.returncode, "0 of 5 files fetched" in again.stdout) == (0, True), again.stderr
    assert len(hub.asked) == before
    assert model.fetch("--verify", "--revision", "main").stdout == "all 5 files have the right hash\n"
    assert hub.revisions == ["main", COMMIT, "main"], "a directory stays at its commit until another one is asked for"


def test_a_mirror_is_asked_instead_of_the_hub(hub: HubServer, model: Directory) -> None:
    with HubServer({}, repo=hub.repo) as the_hub:
        done = model.fetch("--endpoint", hub.url, HF_ENDPOINT=the_hub.url)
        assert done.returncode == 0, done.stderr
        assert (the_hub.revisions, the_hub.asked) == ([], [])
        # Without the option the variable of the library says which; a mirror without the model is one sentence.
        empty = model.fetch("--revision", "main", HF_ENDPOINT=the_hub.url)
        assert (empty.returncode, the_hub.revisions) == (78, ["main"])
        assert empty.stderr == "vllm-supervisor fetch: maker/model has no files at main\n"
    assert model.whole()


def test_dropped_connections_429_and_503_are_gone_on_with(hub: HubServer, model: Directory) -> None:
    hub.fault(SHARDS[0]).drops = 3
    hub.fault(SHARDS[1]).statuses = [429, 503, 503]
    hub.fault("listing").statuses = [503]
    done = model.fetch(VSUP_PROGRESS="json")
    assert done.returncode == 0, done.stderr
    why = f"of 8 follows: {SHARDS[1]}: {hub.url} says 503"
    assert f"try 3 {why}" in done.stderr or f"try 4 {why}" in done.stderr, "what it waits for is shown meanwhile"
    assert model.whole()
    starts = hub.fetched(SHARDS[0])
    assert len(starts) == 4
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[-1] >= SIZE // 2, "it went on where it broke off"
    assert not list((model.path / ".cache/vllm-supervisor/parts").glob("*.*"))
    assert "Traceback" not in done.stderr


def test_a_damaged_shard_is_fetched_again_and_only_that(hub: HubServer, model: Directory) -> None:
    hub.fault(SHARDS[2]).damages = 1
    done = model.fetch()
    assert done.returncode == 0, done.stderr
    assert f"repaired   {SHARDS[2]}" in done.stdout
    assert model.whole()
    assert [len(hub.fetched(name)) for name in SHARDS] == [1, 1, 2]


def test_damage_on_the_disk_is_found_and_repaired(hub: HubServer, model: Directory) -> None:
    assert model.fetch().returncode == 0
    with (model.path / SHARDS[1]).open("r+b") as file:
        file.seek(12345)
        file.write(b"????")
    (model.path / "config.json").write_bytes(b"")
    asked = len(hub.asked)
    seen = model.fetch("--verify", "--offline")
    assert seen.returncode == 1
    assert seen.stdout.splitlines() == ["wrong size: config.json", f"damaged: {SHARDS[1]}"]
    assert len(hub.asked) == asked
    done = model.fetch()
    assert done.returncode == 0, done.stderr
    assert model.whole()
    assert [len(hub.fetched(name)) for name in [*SHARDS, "config.json"]] == [1, 2, 1, 2]


def test_a_source_that_is_damaged_itself_is_given_up(hub: HubServer, model: Directory) -> None:
    hub.fault(SHARDS[0]).damages = 99
    done = model.fetch()
    assert done.returncode == 75
    assert f"{SHARDS[0]} has arrived 3 times with other bytes than the hub promises" in done.stderr
    assert not (model.path / SHARDS[0]).exists()


def test_a_listing_that_lies_about_a_size_is_not_believed(hub: HubServer, model: Directory) -> None:
    hub.fault(SHARDS[0]).listed_size = SIZE - 5
    done = model.fetch()
    assert done.returncode == 75
    assert "with other bytes than the hub promises" in done.stderr


def test_more_promised_than_sent_is_tried_again(hub: HubServer, model: Directory) -> None:
    hub.fault("config.json").promises = 2
    done = model.fetch()
    assert done.returncode == 0, done.stderr
    assert hub.fault("config.json").promises == 0
    assert model.whole()
    assert "Traceback" not in done.stderr


def test_killed_in_the_middle_it_goes_on(hub: HubServer, model: Directory) -> None:
    hub.files[SHARDS[0]] = random.Random(8).randbytes(8 << 20)
    hub.fault(SHARDS[0]).stalls = 1
    process = subprocess.Popen(model.command("--workers", "1"), env=model.env(), stderr=subprocess.PIPE, text=True)
    parts = model.path / ".cache/vllm-supervisor/parts"

    def some() -> bool:
        return any(path.stat().st_size == 4 << 20 for path in parts.glob("model-00001*"))

    wait_until(some, 60, "some bytes of the first shard")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    done = model.fetch()
    assert done.returncode == 0, done.stderr
    assert model.whole()
    assert hub.fetched(SHARDS[0]) == [0, 4 << 20], "it went on behind the half that it had"


def test_two_never_collide(model: Directory) -> None:
    lock = model.path / ".cache/vllm-supervisor/lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        done = model.fetch()
    assert done.returncode == 75
    assert f"pid {os.getpid()} works on {model.path} already" in done.stderr


def test_offline_sizes_are_enough_and_a_hole_is_said(hub: HubServer, model: Directory) -> None:
    nothing = model.fetch("--offline")
    assert nothing.returncode == 1
    assert "holds no download of ours" in nothing.stderr
    assert model.fetch().returncode == 0
    assert model.fetch("--offline").stdout == "all 5 files have the right size\n"
    unreachable = model.fetch("--endpoint", "http://127.0.0.1:9")
    assert unreachable.returncode == 0, unreachable.stderr
    assert "going by the listing that was kept" in unreachable.stderr
    (model.path / SHARDS[0]).unlink()
    hole = model.fetch(HF_HUB_OFFLINE="1")
    assert hole.returncode == 1
    assert hole.stdout == f"missing: {SHARDS[0]}\n"


def test_a_gated_model_wants_a_token_and_the_credential_is_one(
    hub: HubServer, model: Directory, tmp_path: Path
) -> None:
    hub.token = "hf_secret"
    refused = model.fetch()
    assert refused.returncode == 78
    licence = f"maker/model is gated: accept its licence at {hub.url}/maker/model; "
    assert f"{licence}give a token (--token-file)\n" in refused.stderr
    assert f"{licence}the token that was given does not open it\n" in model.fetch(HF_TOKEN="hf_other").stderr
    (tmp_path / "hub-token").write_text("hf_secret\n")
    done = model.fetch(CREDENTIALS_DIRECTORY=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "hf_secret" not in done.stdout + done.stderr


def test_what_does_not_exist_and_what_would_leave_the_directory(hub: HubServer, model: Directory) -> None:
    hub.files["../../etc/passwd"] = b"x"
    done = model.fetch()
    assert done.returncode == 78
    assert "the hub names a file outside of the directory" in done.stderr
    other = Directory(HubServer({}), model.path)
    other.hub = hub
    wrong = subprocess.run(
        [*other.command()[:4], "maker/other", "--to", str(model.path.parent / "other")],
        env=other.env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert wrong.returncode == 78
    assert f"{hub.url} has no maker/other" in wrong.stderr


def test_a_full_disk_is_said_before_anything_is_fetched(hub: HubServer, model: Directory) -> None:
    hub.fault(SHARDS[0]).listed_size = 1 << 50
    done = model.fetch()
    assert done.returncode == 78
    assert "are still to come and" in done.stderr
    assert hub.asked == []


def test_verifying_is_held_to_a_rate(model: Directory) -> None:
    assert model.fetch().returncode == 0
    began = time.monotonic()
    assert model.fetch("--verify", "--offline", "--rate", "3MiB").returncode == 0
    assert time.monotonic() - began >= 9 * 0.9 / 3
