"""Upgrade in place: the same process, a new image; the engine, its requests and its output go on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from process.harness import SOURCE, Daemon, http_get, write_config


def reload(daemon: Daemon) -> subprocess.CompletedProcess[str]:
    """`vllm-supervisor reload`, as ExecReload= calls it."""
    return subprocess.run(
        command(daemon), env=environment(daemon), capture_output=True, text=True, timeout=120, check=False
    )


def command(daemon: Daemon) -> list[str]:
    return [sys.executable, "-m", "vllm_supervisor", "reload", str(daemon.config)]


def environment(daemon: Daemon) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "RUNTIME_DIRECTORY": str(daemon.runtime)}


def ready(tmp_path: Path, **fake) -> Daemon:
    config = write_config(tmp_path, fake, smoke={"on_start": "off"})
    return Daemon(config, tmp_path)


def runs(daemon: Daemon) -> bool:
    text = http_get(daemon.engine_port, "/metrics").text
    return any(line.startswith("vllm:num_requests_running") and not line.endswith(" 0.0") for line in text.splitlines())


def test_a_reload_keeps_process_engine_counters_and_requests(tmp_path: Path) -> None:
    with ready(tmp_path, token_delay=0.05) as daemon:
        before = daemon.wait_phase("ready")
        said = len(daemon.notify.messages)
        answers: list[bytes] = []

        def long_request() -> None:
            body = {"model": "kimi", "prompt": "Hi", "max_tokens": 60}
            answers.append(http_get(daemon.engine_port, "/v1/completions", post=body, timeout=60).body)

        asking = threading.Thread(target=long_request)
        asking.start()
        daemon.wait(lambda: runs(daemon), "the request runs")
        done = reload(daemon)
        assert done.returncode == 0, done.stderr + daemon.log()
        after = daemon.wait_phase("ready")
        asking.join(60)
        assert answers
        assert b"finish_reason" in answers[0]
        assert after["reloads"] == 1
        assert after["engine"]["pid"] == before["engine"]["pid"]
        assert after["began_at"] == before["began_at"]
        assert after["figures"] == before["figures"]
        assert after["phases"]["loading-weights"] == before["phases"]["loading-weights"]
        assert daemon.process.poll() is None
        told = daemon.notify.messages[said:]
        assert not [m for _, m in told if "READY" in m or "STOPPING" in m], told
        # Output is read on, and the end is noticed and judged by the new image.
        daemon.control("emit", text="a line after the reload\n")
        daemon.wait(lambda: "a line after the reload" in daemon.log(), "output after the reload")
        daemon.sigterm()
        assert daemon.wait_exit() == 0
        assert daemon.log().count("stopped on request") == 1


def test_no_line_is_lost_over_a_reload(tmp_path: Path) -> None:
    with ready(tmp_path) as daemon:
        daemon.wait_phase("ready")
        count = 20_000
        stop = threading.Event()
        sent: list[int] = []

        def talk() -> None:
            number = 0
            while not stop.is_set() and number < count:
                daemon.control("emit", text="".join(f"numbered line {n} end\n" for n in range(number, number + 20)))
                number += 20
            sent.append(number)

        talking = threading.Thread(target=talk)
        talking.start()
        assert reload(daemon).returncode == 0, daemon.log()
        daemon.wait_phase("ready")
        stop.set()
        talking.join(30)
        daemon.wait(lambda: f"numbered line {sent[0] - 1} end" in daemon.log(), "the last line")
        found = [line for line in daemon.log().splitlines() if line.startswith("numbered line")]
        assert found == [f"numbered line {n} end" for n in range(sent[0])]


def test_a_worker_death_after_a_reload_is_noticed(tmp_path: Path) -> None:
    with ready(tmp_path) as daemon:
        daemon.wait_phase("ready")
        assert reload(daemon).returncode == 0, daemon.log()
        daemon.wait_phase("ready")
        daemon.wait(lambda: "worker" in daemon.status()["engine"]["processes"].values(), "the worker is seen")
        daemon.control("die", worker=0)
        assert daemon.wait_exit() == 75, daemon.log()
        assert not daemon.descendants()


def test_an_error_of_one_request_after_a_reload_is_no_cause(tmp_path: Path) -> None:
    """The new image never saw the engine load: what is printed now must not be read as words of a start."""
    with ready(tmp_path) as daemon:
        daemon.wait_phase("ready")
        assert reload(daemon).returncode == 0, daemon.log()
        daemon.wait_phase("ready")
        trace = 'Traceback (most recent call last):\n  File "/opt/vllm/x.py", line 1, in write\n    self.write(data)\n'
        daemon.control("emit", text=f"{trace}OSError: [Errno 28] No space left on device: '/tmp/upload'\n", stream=2)
        daemon.wait(lambda: "'/tmp/upload'" in daemon.log(), "the error is read")
        daemon.control("exit", code=1)
        assert daemon.wait_exit() == 75, daemon.log()
        assert "engine-died" in daemon.log()


def test_a_broken_configuration_refuses_the_reload_and_nothing_changes(tmp_path: Path) -> None:
    with ready(tmp_path) as daemon:
        daemon.wait_phase("ready")
        good = daemon.config.read_text()
        daemon.config.write_text(good + "\n[livenes]\nmode = 1\n")
        done = reload(daemon)
        assert done.returncode == 75, done
        assert "livenes: unknown table; did you mean [liveness]?" in done.stderr
        assert daemon.status()["reloads"] == 0
        daemon.config.write_text(good)
        assert reload(daemon).returncode == 0, daemon.log()


def test_new_settings_of_ours_hold_and_the_engines_wait_for_the_next_restart(tmp_path: Path) -> None:
    with ready(tmp_path) as daemon:
        before = daemon.wait_phase("ready")
        text = daemon.config.read_text().replace('"served_model_name" = "kimi"', '"served_model_name" = "other"')
        daemon.config.write_text(text + "\n[liveness]\nhang_after_s = 77\n")
        done = reload(daemon)
        assert done.returncode == 0, done.stderr
        assert "takes effect at the next restart of the engine: engine.served_model_name" in done.stderr
        assert daemon.wait_phase("ready")["model"] == before["model"] == "kimi"


def test_a_reload_before_ready_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"pace": "manual"}, smoke={"on_start": "off"})
    with Daemon(config, tmp_path) as daemon:
        daemon.wait_phase("launching", "configuring")
        done = reload(daemon)
        assert done.returncode == 75
        assert "not ready" in done.stderr


def test_a_stop_right_after_a_reload_is_heard(tmp_path: Path) -> None:
    with ready(tmp_path) as daemon:
        daemon.wait_phase("ready")
        assert reload(daemon).returncode == 0
        daemon.sigterm()
        assert daemon.wait_exit() == 0, daemon.log()


def test_a_trial_that_hangs_and_is_killed_refuses_the_reload_and_the_engine_serves_on(tmp_path: Path) -> None:
    with ready(tmp_path) as daemon:
        before = daemon.wait_phase("ready")
        # Much to carry, so that whoever wrote it through a pipe would still be writing when the reader dies.
        daemon.control("emit", text="a line of some length, again and again, to be carried over\n" * 4000)
        daemon.wait(lambda: daemon.log().count("to be carried over") >= 4000, "all lines read", 30)
        good = daemon.config.read_text()
        daemon.config.unlink()
        os.mkfifo(daemon.config)  # nobody writes: whoever reads it waits for ever
        asking = subprocess.Popen(command(daemon), env=environment(daemon), stderr=subprocess.PIPE, text=True)
        trial = daemon.wait(lambda: trial_of(daemon), "the trial child", 60)
        os.kill(trial, signal.SIGKILL)
        _, said = asking.communicate(timeout=60)
        assert asking.returncode == 75
        assert "the new supervisor does not run (exit -9)" in said
        daemon.config.unlink()
        daemon.config.write_text(good)
        assert reload(daemon).returncode == 0, daemon.log()
        after = daemon.wait_phase("ready")
        assert (after["engine"]["pid"], after["reloads"]) == (before["engine"]["pid"], 1)
        assert "a bug of vllm-supervisor" not in daemon.log()


def trial_of(daemon: Daemon) -> int:
    """The pid of the trial child, 0 while there is none."""
    for child in psutil.Process(daemon.pid).children():
        with contextlib.suppress(psutil.Error):
            if "trial" in child.cmdline():
                return child.pid
    return 0
