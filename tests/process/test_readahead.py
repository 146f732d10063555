"""The daemon and its reading ahead: from the launch to the weights, and gone with whatever ends the start."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from process.daemon_tools import ended, nothing_left, rows, running, samples, told, until_ready, value, verb, wait_until
from process.fakes import gone, write_model
from process.page_cache import MOST
from vllm_supervisor.adapters.readahead import cache

MIB = 1 << 20
SHARDS = 4
SHARD = 32 * MIB
TOTAL = SHARDS * SHARD
PREFIX = "vllm_supervisor_"


@pytest.fixture(scope="module")
def checkpoint():
    """Real bytes on a real disk: /tmp may lie in memory, and holes cost no reading."""
    folder = write_model(Path(tempfile.mkdtemp(dir="/var/tmp")))
    (folder / "model.safetensors").unlink()
    for number in range(1, SHARDS + 1):
        size = SHARD - 100
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write((92).to_bytes(8, "little") + header.ljust(92))
            file.write(os.urandom(size))
            file.flush()
            os.fsync(file.fileno())
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cold(checkpoint):
    for path in checkpoint.glob("*.safetensors"):
        cache.give_back(str(path))
    return {"model": str(checkpoint)}


def readers(daemon):
    """Our reading helpers among the daemon's descendants."""
    found = []
    for pid in daemon.descendants():
        with contextlib.suppress(psutil.Error):
            if "vllm_supervisor.adapters.readahead" in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


def reading(daemon, fits, what):
    """What /status says of the reading, once it fits."""

    def look():
        said = daemon.status().get("readahead")
        return said if said and fits(said) else None

    return daemon.wait(look, what)


def test_it_begins_with_the_launch_and_ends_with_the_weights(tmp_path, cold):
    with running(tmp_path, {"pace": "manual", "shards": SHARDS}, engine=cold) as daemon:
        daemon.wait_phase("launching")
        done = reading(daemon, lambda said: said["doing"] == "done", "all is read before the engine has said a word")
        assert (done["total_bytes"], done["shards"], done["window"]) == (TOTAL, SHARDS, False)
        assert done["read_bytes"] + done["cached_bytes"] == TOTAL
        assert done["read_bytes"] > TOTAL / 2
        (pid,) = readers(daemon)
        assert daemon.status()["status"].endswith("; all 128.0 MiB of weights are in memory")
        assert "all 128.0 MiB of weights are in memory" in daemon.get("/").text
        found = samples(daemon.get("/metrics").text)
        assert value(found, f"{PREFIX}checkpoint_bytes") == value(found, f"{PREFIX}readahead_ahead_bytes") == TOTAL
        assert str(pid) not in daemon.status()["engine"]["processes"]
        daemon.control("finish")
        until_ready(daemon)
        daemon.wait(lambda: gone(pid), "the helper is gone")
        said = daemon.status()["readahead"]
        assert (said["doing"], said["ahead_bytes"]) == ("ended", 0)
        assert MOST <= said["hit_ratio"] <= 1.0
        found = samples(daemon.get("/metrics").text)
        assert value(found, f"{PREFIX}readahead_hit_ratio") == said["hit_ratio"]
        assert value(found, f"{PREFIX}readahead_bytes_total", source="disk") == said["read_bytes"]
        # What it found is kept over a re-execution and in the history.
        assert verb("reload", str(daemon.config), RUNTIME_DIRECTORY=str(daemon.runtime)).returncode == 0, daemon.log()
        assert daemon.wait_phase("ready")["readahead"]["read_bytes"] == said["read_bytes"]
        assert not readers(daemon)
        daemon.sigterm()
        ended(daemon, 0)
    assert json.loads(rows(daemon)[-1]["figures"])["checkpoint_bytes"] == TOTAL


def test_a_window_follows_the_shards(tmp_path, cold):
    fake = {"pace": 0, "shards": SHARDS, "cut_at": 3}
    with running(tmp_path, fake, engine=cold, load={"readahead": "80MiB"}) as daemon:
        daemon.wait_phase("loading-weights")
        daemon.wait(lambda: daemon.control("stats")["cut"], "standstill at shard 3")
        said = reading(daemon, lambda said: said["dropped_bytes"] == 2 * SHARD, "what lies behind is given back")
        said = reading(daemon, lambda said: said["doing"] == "done", "the rest is read")
        assert said["window"] or said["dropped_bytes"]
        assert said["ahead_bytes"] == SHARD
        daemon.control("resume")
        until_ready(daemon)
        daemon.sigterm()
        ended(daemon, 0)


@pytest.mark.parametrize("when", ["configuring", "loading-weights"])
def test_a_stop_leaves_no_helper(tmp_path, cold, when):
    # A window that stays full keeps the helper there.
    fake = {"pace": 0, "shards": SHARDS, "cut_at": when}
    with running(tmp_path, fake, engine=cold, load={"readahead": "70MiB"}, stop={"kill_after_s": 2.0}) as daemon:
        daemon.wait_phase(when)
        (pid,) = daemon.wait(lambda: readers(daemon), "a helper")
        reading(daemon, lambda said: said["total_bytes"] > 0, "its first report")
        daemon.sigterm()
        ended(daemon, 0)
        assert gone(pid)
        nothing_left(daemon)


def test_a_fault_leaves_no_helper_and_names_no_helper(tmp_path, cold):
    fake = {"pace": 0, "shards": SHARDS, "worker_dies_at": "loading-weights"}
    with running(tmp_path, fake, engine=cold) as daemon:
        row = ended(daemon, 75, "worker-killed")
        assert "readahead" not in row["sentence"]
        assert not readers(daemon)


def test_a_killed_helper_does_no_harm(tmp_path, cold):
    fake = {"pace": "manual", "shards": SHARDS}
    with running(tmp_path, fake, engine=cold, load={"readahead": "70MiB"}) as daemon:
        daemon.wait_phase("launching")
        (pid,) = daemon.wait(lambda: readers(daemon), "a helper")
        reading(daemon, lambda said: said["total_bytes"] > 0, "its first report")
        os.kill(pid, signal.SIGKILL)
        said = reading(daemon, lambda said: said["doing"] == "failed", "it is told")
        assert said["why"] == "its helper was ended by SIGKILL"
        daemon.control("finish")
        until_ready(daemon)
        assert "read-ahead failed: its helper was ended by SIGKILL; the engine reads by itself" in daemon.log()
        daemon.sigterm()
        ended(daemon, 0)


def test_a_helper_goes_with_a_killed_daemon(tmp_path, cold):
    with running(tmp_path, {"pace": "manual"}, engine=cold, load={"readahead": "70MiB"}) as daemon:
        daemon.wait_phase("launching")
        (pid,) = daemon.wait(lambda: readers(daemon), "a helper")
        daemon.kill()
        daemon.process.wait(10)
        wait_until(lambda: gone(pid), 20, "the helper is gone", daemon.err)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"load": {"readahead": "off"}}, "load.readahead is off"),
        ({"engine": {"args": {"load-format": "dummy"}}}, "--load-format dummy reads no weights"),
    ],
)
def test_off_is_off_and_says_why(tmp_path, cold, tables, why):
    engine = {**cold, **tables.pop("engine", {})}
    with running(tmp_path, {"pace": "manual"}, engine=engine, **tables) as daemon:
        daemon.wait_phase("launching")
        assert daemon.status()["readahead"]["why"] == why
        assert not readers(daemon)
        assert "readahead_bytes_total" not in daemon.get("/metrics").text
        daemon.control("finish")
        until_ready(daemon)
        assert not [text for text in told(daemon, "STATUS") if "memory" in text or "reading ahead" in text]


def test_a_setting_that_is_no_size_is_one_sentence(tmp_path):
    with running(tmp_path, {}, load={"readahead": "half"}) as daemon:
        assert daemon.wait_exit() == 78
        assert 'must be "auto", "off" or a size' in daemon.log()
