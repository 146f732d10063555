"""The fake's load, its output and its knobs of readiness."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from process.fakes import FAKE, Fake
from process.waiting import refused

PHASES = [
    "launching",
    "configuring",
    "connecting",
    "loading-weights",
    "compiling",
    "sizing-kv-cache",
    "capturing-graphs",
    "starting-server",
]


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FAKE), *words],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={**os.environ, **env},
    )


def test_starts_fast_and_serves_after_its_line(tmp_path):
    with Fake(tmp_path, pace=0) as fake:
        fake.wait_printed("Application startup complete.")
        took = time.monotonic() - fake.started
        fake.wait(lambda: not refused(fake.port), "listening")
        assert fake.get("/health").status == 200
        assert took < 1.0


def test_prints_uvicorn_to_stderr_and_records_to_stdout(tmp_path):
    with Fake(tmp_path, "--tensor-parallel-size", "2", pace=0) as fake:
        stats = fake.wait_ready()
        out, err = fake.out.read_bytes().decode(), fake.err.read_bytes().decode()
    assert "Application startup complete." in err
    assert "Application startup complete." not in out
    assert re.search(
        rf"^\(EngineCore pid={stats['core']}\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[core.py:133\] Initializing a V1 LLM engine \(v0.32.0\)",
        out,
        re.MULTILINE,
    )
    assert f"(Worker_TP1 pid={stats['workers'][1]}) INFO" in out
    assert "\rLoading safetensors checkpoint shards: 100% Completed | 4/4 [" in err
    assert "█  version 0.32.0\r\n" in out


@pytest.mark.parametrize(
    ("version", "prefix"),
    [
        ("0.10.0", "\x1b[1;36m(EngineCore_0 pid={core})\x1b[0;0m INFO"),
        ("0.11.0", "\x1b[1;36m(EngineCore_DP0 pid={core})\x1b[0;0m INFO"),
        ("0.18.1", "(EngineCore pid={core}) INFO"),
    ],
)
def test_wears_the_prefixes_of_older_versions(tmp_path, version, prefix):
    with Fake(tmp_path, pace=0, version=version) as fake:
        stats = fake.wait_ready()
        fake.wait_printed(prefix.format(core=stats["core"]))
        err = fake.err.read_bytes().decode()
    readiness = next(line for line in err.split("\n") if "startup complete" in line)
    assert (f"(APIServer pid={stats['pid']})" in readiness) is (version != "0.10.0")
    assert ("\x1b[" in readiness) is (version == "0.11.0")
    assert "pid=" in next(line for line in err.split("\n") if "checkpoint shards" in line)


def test_stands_still_between_phases_until_it_is_told(tmp_path):
    with Fake(tmp_path, pace="manual") as fake:
        for phase in PHASES:
            assert fake.control("advance") == {"phase": phase}
            assert refused(fake.port)
        assert "Route: /v1/completions" in fake.out.read_text()
        assert "Application startup complete." not in fake.output()
        fake.control("finish")
        assert fake.get("/health").status == 200


def test_advances_to_a_named_phase(tmp_path):
    with Fake(tmp_path, pace="manual") as fake:
        fake.control("advance", to="loading-weights")
        assert fake.printed("Model loading took")
        assert not fake.printed("Dynamo")


def test_prints_the_nine_minute_load_in_a_fraction(tmp_path):
    with Fake(tmp_path, load="kimi", scale=0.0005) as fake:
        fake.wait_ready(20)
        text = fake.output()
    assert "Model loading took 70.81 GiB memory and 523.225535 seconds" in text
    assert "100% Completed | 119/119 [08:43<00:00," in text
    assert "(Worker_TP7 pid=" in text
    assert "Skipping tactic" in text


def test_falls_silent_at_a_shard_and_goes_on(tmp_path):
    with Fake(tmp_path, pace=0, cut_at=2, silent_work="read") as fake:
        fake.wait(lambda: fake.stats()["cut"], "the cut")
        assert fake.printed("| 2/4")
        worker = fake.stats()["workers"][0]
        read = bytes_read(worker)
        fake.wait(lambda: bytes_read(worker) > read, "bytes read in silence")
        assert not fake.printed("| 3/4")
        fake.control("resume")
        fake.wait_ready()


def bytes_read(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as file:  # noqa: PTH123
        return int(file.readline().split()[1])


def test_falls_silent_in_a_phase_while_its_workers_spin(tmp_path):
    with Fake(tmp_path, pace=0, cut_at="compiling", silent_work="spin") as fake:
        fake.wait(lambda: fake.stats()["cut"], "the cut")
        worker = fake.stats()["workers"][0]

        def ticks():
            with open(f"/proc/{worker}/stat", encoding="ascii") as file:  # noqa: PTH123
                return int(file.read().rpartition(")")[2].split()[11])

        before = ticks()
        fake.wait(lambda: ticks() > before + 5, "CPU time of a spinning worker")


def test_replays_a_captured_log_byte_for_byte(tmp_path):
    log = tmp_path / "captured.log"
    lines = [
        "(APIServer pid=7) INFO 11-30 20:08:32 [api_utils.py:286] non-default args: {}",
        "(EngineCore pid=8) INFO 11-30 20:08:42 [core.py:133] Initializing a V1 LLM engine (v0.32.0)",
        "(Worker pid=9) INFO 11-30 20:08:42 [cpu_model_runner.py:68] Starting to load model tiny...",
        "\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 206.46it/s]",
        "INFO:     Application startup complete.",
        'INFO:     127.0.0.1:37206 - "GET /health HTTP/1.1" 200 OK',
    ]
    log.write_text("\n".join(lines) + "\n")
    with Fake(tmp_path, replay=str(log), scale=0.02) as fake:
        fake.wait_ready()
        fake.wait_printed("GET /health")
        assert time.monotonic() - fake.started >= 0.2
        assert fake.out.read_bytes().decode() == "".join(lines[index] + "\n" for index in (0, 1, 2, 5))
        assert fake.err.read_bytes().decode() == "".join(lines[index] + "\n" for index in (3, 4))
        assert fake.get("/health").status == 200


def test_fails_with_a_failure_log(tmp_path):
    log = tmp_path / "failure.log"
    log.write_bytes(
        b"(EngineCore pid=8) ERROR 11-30 20:08:42 [core.py:1512] ValueError: \xff no\nRuntimeError: Engine core initialization failed.\n"
    )
    with Fake(tmp_path, fail_with=str(log)) as fake:
        assert fake.wait_exit() == 1
        assert fake.out.read_bytes() + fake.err.read_bytes() == log.read_bytes()


def test_answers_version_and_help_and_refuses_what_it_must():
    assert run("--version").stdout == "0.32.0\n"
    assert "--tensor-parallel-size" in run("serve", "--help=all").stdout
    strict = run("serve", "m", "--no-such-flag", FAKE_ENGINE='{"strict_flags": true}')
    assert (strict.returncode, strict.stderr.splitlines()[-1]) == (
        2,
        "vllm: error: unrecognized arguments: --no-such-flag",
    )
    wrong = run("serve", "m", FAKE_ENGINE='{"no_such_knob": 1}')
    assert wrong.returncode == 64
    assert "no_such_knob" in wrong.stderr


CORPUS = Path(__file__).resolve().parents[1] / "corpus"


def counted(*parts):
    return Counter(line for part in parts for line in part.split(b"\n") if line)


@pytest.mark.parametrize(
    "name",
    ["engine-logs/cpu-start-ok", "engine-logs/gpu-tp2-ready-then-hung", "failure-logs/healthy-old-engine-noisy-v0.11"],
)
def test_replays_the_healthy_logs_of_the_corpus_and_serves(tmp_path, name):
    log = (CORPUS / f"{name}.log").read_bytes()
    with Fake(tmp_path, replay=str(CORPUS / f"{name}.log"), scale=0, workers=2) as fake:
        fake.wait_ready()
        fake.wait(lambda: len(fake.out.read_bytes()) + len(fake.err.read_bytes()) >= len(log), "the whole log")
        assert counted(fake.out.read_bytes(), fake.err.read_bytes()) == counted(log)
        assert fake.get("/health").status == 200


@pytest.mark.parametrize(
    "name",
    ["checkpoint-incomplete-missing-shards-v0.32", "nccl-error-unhandled-cuda-v0.11", "kv-cache-too-small-v0.32"],
)
def test_fails_as_the_logs_of_the_corpus_do(tmp_path, name):
    log = CORPUS / "failure-logs" / f"{name}.log"
    with Fake(tmp_path, fail_with=str(log), scale=0, workers=8) as fake:
        assert fake.wait_exit() == 1
        assert counted(fake.out.read_bytes(), fake.err.read_bytes()) == counted(log.read_bytes())
