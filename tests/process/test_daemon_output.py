"""Whatever the engine prints, and whoever reads us: nothing is lost that counts, and nobody waits."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from process.daemon_tools import at_most, ended, running, samples, told, until_ready, value, verb
from process.harness import Daemon, write_config

MILLION = 1_000_000


def resident_peak_mib(pid: int) -> float:
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


def test_a_flood_of_a_million_lines_while_loading_loses_no_fact(tmp_path):
    fake = {
        "pace": 0,
        "faults": [{"at": "loading-weights", "who": "w0", "kind": "flood", "lines": MILLION, "length": 24}],
    }
    with running(tmp_path, fake) as daemon:
        daemon.wait(daemon.status, "an answer")
        slowest = 0.0

        def asked() -> bool:
            nonlocal slowest
            began = time.monotonic()
            assert daemon.get("/healthz").status == 200
            slowest = max(slowest, time.monotonic() - began)
            return bool(daemon.notify and daemon.notify.having("READY"))

        daemon.wait(asked, "READY=1", 90)
        assert slowest < at_most(1.0), "the loop turns in the flood"

        def lines_read() -> float:
            found = samples(daemon.get("/metrics").text)
            return sum(number for (name, _), number in found.items() if name == "vllm_supervisor_output_lines_total")

        # The readiness line is on stderr: a last megabyte may still be in the pipe of stdout.
        daemon.wait(lambda: lines_read() >= MILLION, "every line counted")
        figures = daemon.status()["figures"]
        assert figures["weights_gib"] == 3.21
        assert figures["kv_cache_tokens"] == 252736
        assert resident_peak_mib(daemon.pid) < 200
        daemon.sigterm()
        ended(daemon, 0)


def test_broken_and_giant_output_hides_nothing(tmp_path):
    faults = [
        {"at": "imports", "kind": "invalid-utf8"},
        {"at": "configuring", "kind": "nul"},
        {"at": "connecting", "kind": "ansi"},
        {"at": "loading-weights", "kind": "giant", "bytes": 100_000_000, "who": "core"},
        {"at": "compiling", "kind": "bars", "stream": 2, "who": "w0"},
        {"at": "capturing-graphs", "kind": "invalid-utf8", "stream": 2},
    ]
    with running(tmp_path, {"pace": 0, "faults": faults}) as daemon:
        until_ready(daemon, 60)
        figures = daemon.status()["figures"]
        assert figures["weights_gib"] == 3.21
        assert figures["kv_cache_tokens"] == 252736
        assert resident_peak_mib(daemon.pid) < 200
        assert max(map(len, daemon.err.read_bytes().split(b"\n"))) < 1 << 20
        daemon.sigterm()
        ended(daemon, 0)


def test_nobody_reads_our_stderr_and_the_model_is_served(tmp_path):
    # A pipe that is full for good: what the journal does when its disk hangs.
    fake = {"pace": 0, "faults": [{"at": "compiling", "kind": "flood", "lines": 300_000, "length": 120}]}
    pipe = tmp_path / "stderr"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    daemon = Daemon(write_config(tmp_path, fake, smoke={"on_start": "off"}), tmp_path)
    readable, daemon.err = daemon.err, pipe
    daemon.start()
    daemon.err = readable
    readable.touch()
    try:
        until_ready(daemon, 60)
        dropped = value(samples(daemon.get("/metrics").text), "vllm_supervisor_output_dropped_total")
        assert dropped
        assert dropped > 10_000, "what does not fit is dropped and counted"
        daemon.sigterm()
        began = time.monotonic()
        ended(daemon, 0)
        assert time.monotonic() - began < at_most(6.0)
    finally:
        daemon.__exit__()
        os.close(reading)


def test_a_recording_replays_to_the_same_end(tmp_path):
    record = tmp_path / "record"
    with running(tmp_path, {"pace": 0}, args=("--record", str(record))) as daemon:
        until_ready(daemon)
        daemon.sigterm()
        ended(daemon, 0)
        phases = re.findall(r"vllm-supervisor: phase (\S+)", daemon.log())
    done = verb("replay", str(record))
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.findall(r"^ +[\d.]+ s  ([a-z-]+) ", done.stdout, re.MULTILINE)
    assert [phase for phase in shown if phase != "exit"] == ["preflight", *phases]
    assert "exit 0: stopped on request (SIGTERM)" in done.stdout

    daemon.err.unlink()
    with running(
        tmp_path, {"pace": 0, "cut_at": 1}, args=("--record", str(record)), stall={"loading_weights": 1.0}
    ) as daemon:
        row = ended(daemon, 75, "load-stalled")
    done = verb("replay", str(record))
    assert f"exit 75: {row['sentence']}" in done.stdout


def test_a_recording_that_cannot_be_written_ends_the_recording_only(tmp_path):
    with running(tmp_path, {"pace": 0}, args=("--record", "/dev/full")) as daemon:
        until_ready(daemon)
        daemon.sigterm()
        ended(daemon, 0)
        assert daemon.log().count("the recording ends here: No space left on device") == 1
        assert told(daemon, "READY") == ["1"]
    missing = tmp_path / "no" / "record"
    with running(tmp_path, {"pace": 0}, args=("--record", str(missing))) as daemon:
        until_ready(daemon)
        daemon.sigterm()
        ended(daemon, 0)
        assert f"no recording: {missing}: No such file or directory" in daemon.log()
