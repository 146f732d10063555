"""Transient failures are tried again with growing waits, and with an end; the history counts them."""

from __future__ import annotations

import time

from process.daemon_tools import ended, rows, running, samples, told, until_ready, value

SYSTEMD = {"INVOCATION_ID": "3" * 32}
RETRY = {"first_wait_s": 0.3, "max_wait_s": 0.5, "max_attempts": 5}
FAILS = {"pace": 0, "exit_at": "configuring"}


def test_three_failures_in_a_row_then_success_and_a_new_row(tmp_path):
    for attempt in (1, 2, 3):
        with running(tmp_path, FAILS, env=SYSTEMD, retry=RETRY) as daemon:
            ended(daemon, 75, "engine-died")
            waits = [text for text in told(daemon, "STATUS") if text.startswith("Waiting ")]
            assert bool(waits) is (attempt > 1)
            for text in waits:
                assert f"before attempt {attempt} of 5; the last one failed: engine-died: the engine ended" in text
    with running(tmp_path, {"pace": 0}, env=SYSTEMD, retry=RETRY) as daemon:
        began = time.monotonic()
        at = until_ready(daemon)
        assert at - began > 0.5, "the pause doubled to its limit"
        status = daemon.status()
        assert (status["attempt"], status["max_attempts"]) == (4, 5)
        page = samples(daemon.get("/metrics").text)
        # A failed process is never scraped: the counters come from the history.
        died = {"reason": "engine-died", "class": "transient"}
        assert value(page, "vllm_supervisor_failures_total", **died) == 3
        assert value(page, "vllm_supervisor_starts_total", outcome="failed") == 3
        assert value(page, "vllm_supervisor_starts_total", outcome="ready") == 1
        assert daemon.notify
        first = daemon.notify.having("EXTEND_TIMEOUT_USEC")[0]
        assert int(first[1]["EXTEND_TIMEOUT_USEC"]) == 180_500_000, "the announced pause, told at once"
        daemon.sigterm()
        ended(daemon, 0)
    with running(tmp_path, FAILS, env=SYSTEMD, retry=RETRY) as daemon:
        ended(daemon, 75, "engine-died")
        assert not [text for text in told(daemon, "STATUS") if text.startswith("Waiting ")]
    assert [(row["attempt"], row["outcome"], row["exit_code"]) for row in rows(daemon)] == [
        (1, "failed", 75),
        (2, "failed", 75),
        (3, "failed", 75),
        (4, "stopped", 0),
        (1, "failed", 75),
    ]


def test_the_fifth_failure_in_a_row_gives_up_and_a_person_begins_anew(tmp_path):
    for _ in range(4):
        with running(tmp_path, FAILS, env=SYSTEMD, retry={**RETRY, "first_wait_s": 0.05}) as daemon:
            ended(daemon, 75, "engine-died")
    with running(tmp_path, FAILS, env=SYSTEMD, retry={**RETRY, "first_wait_s": 0.05}) as daemon:
        row = ended(daemon, 76, "engine-died")
        assert row["attempt"] == 5
        assert row["sentence"].startswith("gave up after attempt 5 of 5: engine-died")
        assert told(daemon, "STATUS")[-1].startswith("Failed: ")
    # systemd does not restart after 76: whoever starts it now begins a new row.
    with running(tmp_path, FAILS, env=SYSTEMD, retry=RETRY) as daemon:
        row = ended(daemon, 75, "engine-died")
        assert row["attempt"] == 1


def test_a_start_in_the_foreground_is_a_persons_and_never_waits(tmp_path):
    for _ in range(2):
        with running(tmp_path, FAILS, retry={"first_wait_s": 60.0}, env={"INVOCATION_ID": ""}) as daemon:
            row = ended(daemon, 75, "engine-died")
            assert row["attempt"] == 1
