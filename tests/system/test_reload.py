"""`systemctl reload kimi` under real systemd: the same process, the same engine, and the watchdog stays fed."""

from __future__ import annotations

import time

import pytest

from system.service import Service
from system.striking import Strikes

pytestmark = pytest.mark.timeout(240)
CONFIG = "/etc/vllm-supervisor/kimi.toml"


def test_a_reload_keeps_engine_and_watchdog_and_a_broken_configuration_makes_it_fail(service: Service) -> None:
    service.fake({})
    service.override("[Service]\nWatchdogSec=15\nRestart=no\n")
    assert service.start().returncode == 0, service.journal()
    strikes = Strikes(service)
    before, pid = strikes.status(), service.show("MainPID")["MainPID"]
    machine = service.machine

    done = machine.run(["systemctl", "reload", "kimi"], check=False, timeout=60)
    assert done.returncode == 0, done.stderr + service.journal()
    after = service.wait("the next image", lambda: strikes.status().get("reloads") == 1 and strikes.status(), 20)
    assert service.show("MainPID")["MainPID"] == pid
    assert after["engine"]["pid"] == before["engine"]["pid"]
    assert after["began_at"] == before["began_at"]

    good = (machine.root / CONFIG.lstrip("/")).read_text()
    machine.put(good.replace("[smoke]", "[smok]"), CONFIG)
    done = machine.run(["systemctl", "reload", "kimi"], check=False, timeout=60)
    assert done.returncode != 0
    assert "smok: unknown table; did you mean [smoke]?" in service.journal(30)
    machine.put(good, CONFIG)
    assert machine.run(["systemctl", "reload", "kimi"], timeout=60).returncode == 0

    # Longer than the watchdog's limit: an image that did not feed it would have been ended.
    until = time.monotonic() + 20.0
    service.wait("the watchdog's limit passes", lambda: time.monotonic() > until, 30)
    shown = service.show("ActiveState", "MainPID", "NRestarts")
    assert (shown["ActiveState"], shown["MainPID"], shown["NRestarts"]) == ("active", pid, "0"), service.journal()
    service.wait("the second reload", lambda: strikes.status().get("reloads") == 2, 20)
    service.stop()
    assert service.wait_state("inactive")["Result"] == "success"
    assert service.left_over() == ""
