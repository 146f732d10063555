"""`upgrade` under real systemd with stand-in wheels: switched to when it serves, left again when it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from system import standin
from system.operating import FINISH, FINISHER, HELD, break_off, clean, kill_at, kills_left, lose_terminal, states, vsup
from system.service import Service
from system.standin import PIP, link

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    """kimi on version 0.32.0 through the link /opt/vllm; 0.32.1 is good, 0.33.0 fails while it starts."""
    clean(service)
    failing = {"fail_with": "/srv/corpus/failure-logs/kv-cache-too-small-v0.32.log"}
    standin.offer(service, {"0.32.0": {}, "0.32.1": {}, "0.33.0": failing})
    standin.install(service, "0.32.0")
    assert service.start().returncode == 0, service.journal()
    yield service
    clean(service)
    standin.remove(service)


def test_a_version_that_serves_is_switched_to_and_the_old_one_is_the_way_back(kimi: Service) -> None:
    kill_at(kimi, "install begun", "switch begun", "wait begun")
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.1", "--pip-args", PIP, timeout=200)
    assert done.returncode == 0, done.stderr
    assert kills_left(kimi) == ""
    assert link(kimi) == "/opt/vllm-0.32.1"
    shown = kimi.machine.run("readlink /proc/$(pgrep -of '/opt/vllm.*bin/vllm serve')/exe; pgrep -af bin/vllm").stdout
    assert "/bin/vllm serve" in shown
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert states(kimi)["back"] == "skipped"

    again = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.1")
    assert again.returncode == 64
    assert "/opt/vllm points to /opt/vllm-0.32.1 already" in again.stderr
    old = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.0")
    assert old.returncode == 0, old.stderr
    assert link(kimi) == "/opt/vllm-0.32.0"


def test_a_version_that_fails_is_left_again_and_its_incident_kept(kimi: Service) -> None:
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.33.0", "--pip-args", PIP, timeout=200)
    assert done.returncode == 18, done.stderr
    assert "178720" in done.stderr
    assert link(kimi) == "/opt/vllm-0.32.0"
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert states(kimi)["back-smoke"] == "done"
    kept = kimi.machine.run("ls -d /var/lib/vllm-supervisor-operations/kimi/incident-0.33.0-*").stdout
    assert "kv-cache-too-small" in kept
    assert kimi.machine.run("ls /opt/vllm-0.33.0/bin/vllm").stdout


def test_a_version_that_does_not_exist_stops_nothing(kimi: Service) -> None:
    before = kimi.show("MainPID")
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "9.9.9", "--pip-args", PIP, timeout=120)
    assert done.returncode == 11, done.stderr
    assert "No matching distribution" in done.stderr
    assert kimi.show("MainPID") == before
    assert link(kimi) == "/opt/vllm-0.32.0"


def test_lost_and_broken_off_it_is_gone_on_with(kimi: Service) -> None:
    standin.offer(kimi, {"0.32.1": HELD})
    standin.place(kimi, "0.32.1")
    kimi.machine.put(FINISHER, "/srv/finish.py")
    lose_terminal(kimi, "upgrade kimi --vllm 0.32.1", "wait *waiting")
    busy = vsup(kimi, "restart", "kimi")
    assert busy.returncode == 75, busy.stderr
    assert "an upgrade of kimi is under way" in busy.stderr
    break_off(kimi)
    refused = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.1")
    assert refused.returncode == 75, refused.stderr
    assert "an upgrade of kimi was begun and has not ended" in refused.stderr

    again = kimi.machine.run(
        f"{FINISH} & vllm-supervisor upgrade kimi --resume; code=$?; wait; exit $code", check=False, timeout=120
    )
    assert again.returncode == 0, again.stderr
    assert "wait       done" in again.stderr
    assert link(kimi) == "/opt/vllm-0.32.1"
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert states(kimi)["back"] == "skipped"
