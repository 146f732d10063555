"""`snapshot` under real systemd: whatever is killed or fails in the middle, the service comes back and it is said."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from system.operating import RECORD, UNIT, clean, fake, kill_at, kills_left, record, states, vsup
from system.service import Service

pytestmark = pytest.mark.timeout(240)

SEEN = "/run/seen-by-the-command"
LOOK = ["sh", "-c", f'systemctl is-active kimi >{SEEN}; cp "$SNAPSHOT_MANIFEST" {SEEN}.json']


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    clean(service)
    fake(service, {})
    assert service.start().returncode == 0, service.journal()
    yield service
    clean(service)
    service.machine.run(f"rm -f {SEEN} {SEEN}.json")


def active(service: Service) -> str:
    return service.show("ActiveState")["ActiveState"]


def test_the_command_finds_a_stopped_service_and_a_manifest_and_the_service_comes_back(kimi: Service) -> None:
    done = vsup(kimi, "snapshot", "kimi", "--", *LOOK)
    assert done.returncode == 0, done.stderr
    assert kimi.machine.run(["cat", SEEN]).stdout.strip() == "inactive"
    assert active(kimi) == "active"
    (read,) = [line["text"] for line in record(kimi) if line.get("step") == "ahead" and line["state"] == "done"]
    assert "in 1 shard in memory" in read or "lies in memory already" in read, read
    manifest = json.loads(kimi.machine.run(["cat", f"{SEEN}.json"]).stdout)
    assert manifest["consistent"] is True
    assert manifest["versions"]["kernel"].startswith("Linux ")
    assert "/etc/vllm-supervisor/kimi.toml" in manifest["configuration"]
    assert any(path.endswith("/lib/systemd/system/kimi.service") for path in manifest["units"])
    assert manifest["checkpoint"]["config.json"]["size"] > 0
    assert manifest["last_start"]["ready_after_s"] > 0

    same = vsup(kimi, "snapshot", "verify", f"{SEEN}.json")
    assert (same.returncode, same.stdout[:15]) == (0, "nothing differs"), same.stdout + same.stderr
    kimi.machine.run("echo '#' >>/etc/vllm-supervisor/kimi.toml; echo ' ' >>/srv/model/config.json")
    other = vsup(kimi, "snapshot", "verify", f"{SEEN}.json")
    assert other.returncode == 1, other.stderr
    assert "configuration: /etc/vllm-supervisor/kimi.toml is " in other.stdout
    assert "checkpoint: config.json is " in other.stdout
    assert len(other.stdout.splitlines()) == 2, other.stdout


def test_without_a_stop_it_goes_on_serving(kimi: Service) -> None:
    before = kimi.show("MainPID")
    done = vsup(kimi, "snapshot", "kimi", "--no-stop", "--", *LOOK)
    assert done.returncode == 0, done.stderr
    assert kimi.machine.run(["cat", SEEN]).stdout.strip() == "active"
    assert json.loads(kimi.machine.run(["cat", f"{SEEN}.json"]).stdout)["consistent"] is False
    assert kimi.show("MainPID") == before


def test_a_service_that_was_stopped_stays_stopped(kimi: Service) -> None:
    kimi.stop()
    done = vsup(kimi, "snapshot", "kimi", "--", "true")
    assert done.returncode == 0, done.stderr
    assert active(kimi) == "inactive"


@pytest.mark.parametrize(
    ("command", "said"),
    [(["sh", "-c", "echo no space left; exit 3"], "ended with 3"), (["/no/such/tool"], "cannot be run")],
)
def test_a_command_that_fails_brings_the_service_back(kimi: Service, command: list[str], said: str) -> None:
    done = vsup(kimi, "snapshot", "kimi", "--", *command)
    assert done.returncode == 16, done.stderr
    assert said in done.stderr
    assert active(kimi) == "active"
    assert states(kimi)["smoke"] == "done"


STEPS = ["check", "ahead", "stop", "gpus", "sync", "manifest", "start", "wait", "smoke"]


def test_killed_at_every_step_it_goes_on_and_the_service_returns(kimi: Service) -> None:
    kill_at(kimi, *(f"{step} begun" for step in STEPS), "stop done", "command done")
    done = vsup(kimi, "snapshot", "kimi", "--", *LOOK, timeout=200)
    assert kills_left(kimi) == "", done.stderr
    assert done.returncode == 0, done.stderr + kimi.machine.journal(UNIT)
    assert kimi.machine.run(["cat", SEEN]).stdout.strip() == "inactive"
    assert active(kimi) == "active"
    assert set(states(kimi).values()) == {"done"}


def test_the_command_dies_with_a_killed_operation_and_a_broken_record_is_no_obstacle(kimi: Service) -> None:
    kimi.machine.run(
        "vllm-supervisor snapshot kimi -- sleep 1000 >/run/lost.log 2>&1 & "
        "until pgrep -x sleep -a | grep -q 'sleep 1000'; do sleep 0.05; done; "
        f'printf \'{{"step": "comm\' >>{RECORD}; '
        f"kill -KILL $(systemctl show --value -p MainPID {UNIT}); wait",
        timeout=60,
    )
    said = kimi.machine.run("cat /run/lost.log").stdout
    assert "command failed: it was interrupted" in said, said
    assert kimi.machine.run(["pgrep", "-xf", "sleep 1000"], check=False).stdout == ""
    assert active(kimi) == "active"
