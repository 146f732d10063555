"""Weights that a second unit holds: it gets ready, is stopped, loses a rank, and stays when the engine ends."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake.gpus import FAKE_NVML, FakeGpus
from process.daemon_tools import Patient, ended, marked, nothing_left, samples, until_ready
from process.harness import SOURCE, free_port, write_config, write_environment


def configured(folder: Path) -> Path:
    """One configuration for both units; what the fake does stands in each one's own environment."""
    config = write_config(
        folder,
        {"pace": 0},
        engine={
            "command": [str(write_environment(folder / "vllm")), "serve"],
            "device": "cuda",
            "args": {"tensor-parallel-size": 2, "enable-auto-tool-choice": True, "tool-call-parser": "kimi_k2"},
        },
        weights={"held": True, "listen": f"127.0.0.1:{free_port()}", "health_port": free_port()},
        smoke={"on_start": "off"},
    )
    theirs = f'"FAKE_ENGINE" = {json.dumps(str(folder / "fake.json"))}\n'
    assert theirs in config.read_text()
    config.write_text(config.read_text().replace(theirs, ""))
    FakeGpus(folder, count=2)
    return config


@pytest.fixture
def room() -> Iterator[Path]:
    """Where both units have their runtime directories: a socket's path has 107 bytes, and pytest's are long."""
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        yield Path(folder)


def environment(config: Path) -> dict[str, str]:
    return {
        "VSUP_FAKE_NVML": str(config.parent / "gpus.json"),
        "PYTHONPATH": f"{FAKE_NVML}{os.pathsep}{SOURCE}",
    }


class Holder(Patient):
    """The daemon of the second unit: the same file, directories of its own, another page."""

    def __init__(self, config: Path, room: Path, fake: dict[str, object] | None = None) -> None:
        folder = config.parent / "holder"
        folder.mkdir()
        (folder / "fake.json").write_text(json.dumps(fake or {}))
        super().__init__(config, folder, args=("--weights",), env=environment(config))
        self.port = int(self.settings["weights"]["listen"].rpartition(":")[2])
        self.runtime = room / "fake-weights"


def serving(config: Path, room: Path) -> Patient:
    """The daemon of the engine's own unit."""
    (config.parent / "notify").unlink(missing_ok=True)
    daemon = Patient(config, config.parent, env=environment(config))
    daemon.runtime = room / "fake"
    return daemon


def ranks(holder: Holder) -> set[int]:
    return {pid for pid in marked(holder) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_a_rank_that_dies_ends_the_rest_and_another_attempt_follows(tmp_path: Path, room: Path) -> None:
    with Holder(configured(tmp_path), room) as holder:
        until_ready(holder)
        holder.wait(lambda: len(ranks(holder)) == 2, "two ranks")
        rank = min(ranks(holder))
        holder.wait(lambda: str(rank) in holder.status()["engine"]["processes"], "a look at the processes")
        os.kill(rank, signal.SIGKILL)
        row = ended(holder, 75, "worker-killed")
        assert "a process that holds weights" in row["sentence"]


def test_a_rank_that_dies_while_loading_is_no_ready_unit(tmp_path: Path, room: Path) -> None:
    fake = {"worker_dies_at": "loading-weights", "worker_dies_rank": 1}
    with Holder(configured(tmp_path), room, fake) as holder:
        assert holder.wait_exit() == 75, holder.log()
        assert holder.notify
        assert not holder.notify.having("READY")
        nothing_left(holder)


def test_the_weights_stay_when_the_engine_ends_and_starts_again_and_go_with_their_own_unit(
    tmp_path: Path, room: Path
) -> None:
    config = configured(tmp_path)
    with Holder(config, room) as holder:
        until_ready(holder)
        holder.wait(lambda: len(ranks(holder)) == 2, "two ranks")
        before = ranks(holder)
        assert len(list(holder.runtime.glob("vllm_weight_cache_*.sock"))) == 2
        with serving(config, room) as engine:
            until_ready(engine)
            assert engine.status()["weights"] == {"holder": "fake-weights", "held": True, "differing": []}
            assert 'vllm_supervisor_weights_held{part="engine"} 1.0' in engine.get("/metrics").text
            assert "vllm_supervisor_weights_fit 1.0" in engine.get("/metrics").text
            assert 'vllm_supervisor_weights_held{part="holder"} 1.0' in holder.get("/metrics").text
            command = Path(f"/proc/{engine.control('stats')['pid']}/cmdline").read_text().split("\0")
            assert command[command.index("--load-format") + 1] == "ipc_cache"
            extra = json.loads(command[command.index("--model-loader-extra-config") + 1])
            assert extra == {"socket_dir": str(holder.runtime), "fallback": False}
            os.kill(engine.control("stats")["core"], signal.SIGKILL)
            ended(engine, 75, "engine-died")
        with serving(config, room) as engine:
            until_ready(engine)
            engine.sigterm()
            ended(engine, 0)
        assert ranks(holder) == before
        assert holder.status()["phase"] == "ready"
        holder.sigterm()
        ended(holder, 0)
        nothing_left(holder)


def test_memory_that_the_engine_still_maps_is_no_remainder_of_a_stop(tmp_path: Path, room: Path) -> None:
    config = configured(tmp_path)
    # Where NVML shows no pids, all that is known of a rest is how much is in use.
    gpus = FakeGpus(tmp_path, count=2)
    hidden = {"nvmlDeviceGetComputeRunningProcesses": 3}
    for index in range(2):
        gpus.card(index, errors=hidden)
    with Holder(config, room) as holder:
        until_ready(holder)
        for index in range(2):
            gpus.card(index, errors=hidden, memory_used=90 << 30)  # the weights, and what the engine took besides
        holder.wait(lambda: _used(holder.get("/metrics").text) == [90 << 30] * 2, "the memory is seen")
        holder.sigterm()
        ended(holder, 0)
        assert "a reboot is needed" not in holder.log()


def _used(page: str) -> list[float]:
    return [value for (name, _), value in samples(page).items() if name == "vllm_supervisor_gpu_memory_used_bytes"]


def test_a_start_tells_of_weights_that_are_not_held_or_not_those_that_it_wants(tmp_path: Path, room: Path) -> None:
    config = configured(tmp_path)
    with serving(config, room) as engine:
        until_ready(engine)
        assert any("fake-weights is not running" in text for text in engine.status()["warnings"])
        assert 'vllm_supervisor_weights_held{part="engine"} 0.0' in engine.get("/metrics").text
        engine.sigterm()
        ended(engine, 0)
    with Holder(config, room) as holder:
        until_ready(holder)
        text = config.read_text()
        assert text.count('"tensor-parallel-size" = 2') == 1
        config.write_text(text.replace('"tensor-parallel-size" = 2', '"tensor-parallel-size" = 1'))
        with serving(config, room) as engine:
            until_ready(engine)
            told = "fake-weights holds weights of other settings (tensor-parallel-size)"
            assert any(told in text for text in engine.status()["warnings"])
            assert "vllm_supervisor_weights_fit 0.0" in engine.get("/metrics").text
            engine.sigterm()
            ended(engine, 0)
        holder.sigterm()
        ended(holder, 0)
