"""The daemon and its reading ahead: from the launch to the weights, and gone with whatever ends the start."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from process.daemon_tools import ended, nothing_left, rows, running, samples, told, until_ready, value, verb, wait_until
from process.fakes import gone, write_model
from process.page_cache import MOST, mostly
from process.waiting import http_get
from vllm_supervisor.adapters.readahead import cache
from vllm_supervisor.commands.operations.ahead import Ahead
from vllm_supervisor.daemon.instance import read_instance

MIB = 1 << 20
SHARDS = 4
SHARD = 32 * MIB
TOTAL = SHARDS * SHARD
PREFIX = "vllm_supervisor_"
TOKENS = "vllm:generation_tokens_total"


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
        # A look at the moment of its start takes it for one more; the next one, a second later, does not.
        daemon.wait(lambda: str(pid) not in daemon.status()["engine"]["processes"], "it is no part of the engine")
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


class Unit:
    """What a planned restart asks of systemd, for a daemon without a unit."""

    def __init__(self, daemon):
        self.daemon = daemon

    def show(self, *_):
        return {"ActiveState": "active", "Environment": ""}

    def instance(self):
        return read_instance(self.daemon.config, state_dir=self.daemon.state, runtime_dir=self.daemon.runtime)


def test_a_planned_restart_reads_beside_a_busy_engine_and_the_next_one_finds_it(tmp_path, checkpoint, cold):
    fake = {"pace": 0, "token_delay": 0.01}
    with running(tmp_path, fake, engine={**cold, "args": {"load-format": "dummy"}}, stop={"drain_s": 0.0}) as daemon:
        until_ready(daemon)
        assert daemon.status()["readahead"]["read_bytes"] == 0
        # From here on the configuration asks for the weights.
        daemon.config.write_text(daemon.config.read_text().replace('"load-format" = "dummy"\n', ""))
        ask = {"model": "kimi", "prompt": "count", "max_tokens": 1_000_000, "ignore_eos": True}
        asking = threading.Thread(target=_ask, args=(daemon.engine_port, ask))
        asking.start()
        daemon.wait(lambda: daemon.control("stats")["in_flight"] == 1, "a running request")
        before, running_then = _tokens(daemon), []
        said = Ahead(Unit(daemon)).read("", lambda _: running_then.append(daemon.control("stats")["in_flight"]))
        assert said.startswith("all 128.0 MiB in 4 shards in memory: "), said
        assert set(running_then) == {1}
        daemon.wait(lambda: _tokens(daemon) > before, "the engine goes on with its request")
        daemon.sigterm()
        ended(daemon, 0)
        asking.join(30)
    shares = [cache.cached_share(str(path), path.stat().st_size) for path in checkpoint.glob("*.safetensors")]
    assert mostly(shares), shares
    with running(tmp_path, {"pace": "manual", "shards": SHARDS}, engine=cold) as daemon:
        done = reading(daemon, lambda said: said["doing"] == "done", "all is there")
        assert done["cached_bytes"] >= MOST * TOTAL, done
        daemon.control("finish")
        until_ready(daemon)
        daemon.sigterm()
        ended(daemon, 0)


def _ask(port, ask):
    with contextlib.suppress(OSError, http.client.HTTPException):  # the stop cuts it off
        http_get(port, "/v1/completions", post=ask, timeout=120)


def _tokens(daemon):
    return sum(size for (name, _), size in samples(daemon.get("/metrics").text).items() if name == TOKENS)


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
