"""Loads, stalls, retries and permanent faults under real systemd, with the fake engine for what the real one cannot be made to do."""

from __future__ import annotations

import time

import pytest

from system.service import Service

pytestmark = pytest.mark.timeout(300)

KIMI = ["--tensor-parallel-size", "8"]
SHORT = "[Service]\nTimeoutStartSec={seconds}\n"


def kimi(service: Service, scale: float, **knobs) -> None:
    """The nine-minute load, TP=8, 119 shards, in `scale` of its time."""
    service.fake({"load": "kimi", "scale": scale, **knobs}, args={"tensor-parallel-size": 8})


def test_a_load_longer_than_the_start_timeout_survives_by_its_progress(service: Service) -> None:
    kimi(service, 0.04)  # about 24 s
    service.override(SHORT.format(seconds=8))
    began = time.monotonic()
    done = service.start(timeout=120)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr + service.journal()
    assert took > 12, f"the load was not longer than the time-out: {took:.1f} s"
    shown = service.show("ActiveState", "StatusText")
    assert shown["ActiveState"] == "active"
    assert "Ready" in shown["StatusText"]


def test_a_load_that_stops_moving_ends_with_its_phase_named_before_systemd_ends_it(service: Service) -> None:
    service.fake(
        {"load": "kimi", "scale": 0.01, "cut_at": 54, "silent_work": "spin"},
        args={"tensor-parallel-size": 8},
        stall={"loading_weights": 4},
        retry={"max_attempts": 5, "first_wait_s": 60},
    )
    done = service.start(timeout=120)
    assert done.returncode != 0
    shown = service.wait_state("activating", "failed")
    assert shown["Result"] in {"exit-code", "success"}, shown  # never `timeout`: the verdict was ours
    journal = service.journal(400)
    assert "load-stalled" in journal
    assert "loading-weights" in journal
    assert "(exit 75)" in journal
    assert "Start operation timed out" not in journal
    # systemd starts it again; it waits and says why.
    waiting = service.wait_status("attempt 2 of 5", timeout=30)
    assert "load-stalled" in waiting


def test_a_permanent_fault_fails_the_unit_after_one_start_with_its_sentence(service: Service) -> None:
    service.fake({"fail_with": "/srv/corpus/failure-logs/kv-cache-too-small-v0.32.log"})
    done = service.start(timeout=120)
    assert done.returncode != 0
    shown = service.wait_state("failed")
    assert shown["ExecMainStatus"] == "78", shown
    assert shown["NRestarts"] == "0"
    status = service.machine.run(["systemctl", "status", "kimi", "--no-pager", "-n", "10"], check=False).stdout
    assert "kv-cache-too-small" in status
    assert "178720" in status  # the advice has the figure of the log


def test_three_transient_failures_then_success(service: Service) -> None:
    service.machine.put("0", "/srv/tries")
    service.fake(
        {"exit_at": "connecting", "exit_code": 1}, retry={"max_attempts": 5, "first_wait_s": 0.5, "max_wait_s": 1}
    )
    service.start(block=False)
    service.wait_status("attempt 4 of 5", timeout=90)
    service.fake({}, retry={"max_attempts": 5, "first_wait_s": 0.5, "max_wait_s": 1})
    shown = service.wait_state("active", timeout=60)
    assert "Ready" in service.wait_status("Ready")
    assert int(shown["NRestarts"]) >= 3


def test_it_gives_up_after_the_fifth_and_a_manual_start_begins_anew(service: Service) -> None:
    service.fake(
        {"exit_at": "connecting", "exit_code": 1}, retry={"max_attempts": 5, "first_wait_s": 0.2, "max_wait_s": 0.5}
    )
    service.start(block=False)
    shown = service.wait_state("failed", timeout=120)
    assert shown["ExecMainStatus"] == "76", service.journal()
    assert shown["NRestarts"] == "4", shown
    assert "gave up after attempt 5 of 5" in service.journal(200)
    service.fake({}, retry={"max_attempts": 5, "first_wait_s": 0.2, "max_wait_s": 0.5})
    assert service.start().returncode == 0
    assert service.get("/status")[1].count('"attempt": 1') == 1


def test_a_worker_that_dies_while_serving_brings_the_model_back(service: Service) -> None:
    service.fake({"workers": 2}, args={"tensor-parallel-size": 2}, retry={"first_wait_s": 0.2})
    assert service.start().returncode == 0
    worker = service.machine.run("pgrep -u vllm -x VLLM::Worker_TP | head -n 1").stdout.strip()
    assert worker, service.machine.run("ps -u vllm -o pid,comm,args").stdout
    service.machine.run(["kill", "-KILL", worker])
    service.wait("a second start", lambda: service.show("NRestarts")["NRestarts"] == "1", 30)
    assert "Ready" in service.wait_status("Ready", timeout=60)
    assert "worker-killed" in service.journal(400)


def test_a_busy_metrics_port_does_not_keep_the_model_down(service: Service) -> None:
    service.fake({})
    holder = service.machine.run(
        "systemd-run --quiet --unit holder python3 -m http.server 9477 --bind 127.0.0.1 && sleep 0.2; "
        "systemctl show holder -p MainPID --value"
    )
    assert holder.stdout.strip()
    service.wait("the port is taken", lambda: service.get("/")[0] == 200, 20)
    try:
        assert service.start().returncode == 0, service.journal()
        assert "metrics port 127.0.0.1:9477" in service.wait_status("metrics port")
    finally:
        service.machine.run("systemctl stop holder")
    service.wait("our own page", lambda: "vllm_supervisor_ready 1.0" in service.get("/metrics")[1], 20)


def test_the_watchdog_ends_a_supervisor_that_stands_still(service: Service) -> None:
    service.fake({})
    service.override("[Service]\nWatchdogSec=3\nRestart=no\nTimeoutAbortSec=5\n")
    assert service.start().returncode == 0
    pid = service.show("MainPID")["MainPID"]
    service.machine.run(["kill", "-STOP", pid])
    shown = service.wait_state("failed", "inactive", timeout=60)
    assert shown["Result"] == "watchdog", shown
    assert service.left_over() == ""
