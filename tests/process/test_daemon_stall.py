"""Slow is not dead: evidence extends the start's timeout, a timer never does, and a standstill is named."""

from __future__ import annotations

import pytest

from process.daemon_tools import at_most, ended, rows, running, told, until_ready


def test_nine_minutes_of_load_scaled_are_told_shard_by_shard(tmp_path):
    fake = {"load": "kimi", "scale": 0.009}  # 10 minutes in 5.4 s
    with running(tmp_path, fake, engine={"args": {"tensor-parallel-size": 8}}) as daemon:
        until_ready(daemon)
        first = daemon.status()
        assert len(first["engine"]["processes"]) == 10
        sentences = told(daemon, "STATUS")
        loading = [text for text in sentences if text.startswith("Loading weights: shard")]
        assert len(loading) >= 4
        assert all(" of 119 (" in text for text in loading)
        assert any("left for this step" in text for text in loading), "the bar's own rate gives an end"
        extended = [int(text) / 1e6 for text in told(daemon, "EXTEND_TIMEOUT_USEC")]
        assert len(extended) >= 2
        assert all(seconds <= 900 + 60 for seconds in extended)
        assert first["figures"]["weights_gib"] == 70.81
        daemon.sigterm()
        ended(daemon, 0)
    expected = {"launching", "configuring", "connecting", "loading-weights", "compiling", "sizing-kv-cache"}
    (row,) = rows(daemon)
    assert all(f'"{phase}"' in row["phases"] for phase in expected)
    assert '"loading-weights"' in row["gaps"]

    # The second start knows how long each phase takes, from the first one.
    with running(tmp_path, fake, engine={"args": {"tensor-parallel-size": 8}}) as daemon:
        daemon.wait_phase("loading-weights")
        status = daemon.status()
        assert 3.0 < status["expected"]["loading-weights"] < at_most(7.0)
        assert status["eta_seconds"] > 0.5
        assert 0 < status["progress"] < 1
        daemon.sigterm()


@pytest.mark.parametrize("silent_work", ["", "spin"])
def test_progress_cut_off_in_the_middle_ends_with_the_phase_named(tmp_path, silent_work):
    # A deadlocked NCCL spins at full utilisation: CPU time of workers proves nothing.
    fake = {"pace": 0, "cut_at": 2, "silent_work": silent_work}
    with running(tmp_path, fake, stall={"loading_weights": 2.0}) as daemon:
        row = ended(daemon, 75, "load-stalled")
    begin = "load-stalled: no progress in loading-weights for "
    assert row["sentence"].startswith(begin)
    # The budget is 2 s; how long after it the look falls is the host's affair, and far below systemd's time-out.
    assert 2.0 <= float(row["sentence"].removeprefix(begin).split()[0]) < 10.0
    assert not told(daemon, "READY")
    assert daemon.notify
    failed, _ = daemon.notify.wait_for(lambda pairs: pairs.get("STATUS", "").startswith("Stopping: load-stalled"))
    extended = [
        (at, int(pairs["EXTEND_TIMEOUT_USEC"]) / 1e6) for at, pairs in daemon.notify.having("EXTEND_TIMEOUT_USEC")
    ]
    asked = [(at, seconds) for at, seconds in extended if at < failed - 0.2]  # the incident extends, too
    assert asked
    assert failed < max(at + seconds for at, seconds in asked), "our verdict comes before systemd's"
    # Nothing was extended in the silence: the last extension belongs to the load before it.
    assert failed - asked[-1][0] > 1.5


def test_silence_in_which_the_workers_read_is_progress(tmp_path):
    fake = {"pace": 0, "cut_at": 2, "silent_work": "read"}
    with running(tmp_path, fake, stall={"loading_weights": 2.5}) as daemon:
        daemon.wait_phase("loading-weights")
        daemon.wait(lambda: daemon.status().get("since_seconds", 0) > 5.5, "more than twice the budget")
        assert daemon.status()["phase"] == "loading-weights"
        daemon.control("resume")
        until_ready(daemon)


def test_silence_in_which_memory_grows_is_progress_until_it_has_grown(tmp_path):
    fake = {"pace": 0, "cut_at": 2, "silent_work": "grow"}  # for 3.2 s
    with running(tmp_path, fake, stall={"loading_weights": 2.5}) as daemon:
        daemon.wait_phase("loading-weights")
        row = ended(daemon, 75, "load-stalled")
        assert "(last: memory grew)" in row["sentence"]
        assert row["ended_at"] - row["began_at"] > 4.5


def test_a_stop_is_told_from_a_timeout_of_systemd(tmp_path):
    with running(tmp_path, {"pace": "manual"}) as daemon:
        daemon.wait_phase("launching")
        daemon.sigterm()
        row = ended(daemon, 0)
        assert row["sentence"] == "stopped on request (SIGTERM)"
