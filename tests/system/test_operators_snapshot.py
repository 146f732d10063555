"""`snapshot` under real systemd: whatever is killed or fails in the middle, the service comes back and it is said."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from system.operating import (
    RECORD,
    UNIT,
    break_off,
    clean,
    fake,
    kill_at,
    kills_left,
    lose_terminal,
    record,
    states,
    vsup,
)
from system.service import Service

pytestmark = pytest.mark.timeout(240)

SEEN = "/run/seen-by-the-command"
GO = "/run/go"
WAITING = f"sh -c 'echo ran >>{SEEN}; until test -e {GO}; do sleep 0.05; done'"
LOOK = ["sh", "-c", f'systemctl is-active kimi >{SEEN}; cp "$SNAPSHOT_MANIFEST" {SEEN}.json']


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    clean(service)
    fake(service, {})
    assert service.start().returncode == 0, service.journal()
    yield service
    clean(service)
    service.machine.run(f"rm -f {SEEN} {SEEN}.json {GO}")


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


def test_a_lost_terminal_does_not_end_it_and_resume_follows(kimi: Service) -> None:
    lose_terminal(kimi, f"snapshot kimi -- {WAITING}", "command *running")
    kimi.wait("the command runs", lambda: kimi.machine.run(f"cat {SEEN}", check=False).stdout, 60)
    assert active(kimi) == "inactive"
    busy = vsup(kimi, "snapshot", "kimi", "--", "true")
    assert busy.returncode == 75, busy.stderr
    assert "a snapshot of kimi is under way; `vllm-supervisor snapshot kimi --resume` follows it" in busy.stderr
    other = vsup(kimi, "upgrade", "kimi", "--resume")
    assert other.returncode == 64, other.stderr
    assert "the last operation on it was a snapshot" in other.stderr

    kimi.machine.run(["touch", GO])
    again = vsup(kimi, "snapshot", "kimi", "--resume")
    assert again.returncode == 0, again.stderr
    assert "all steps are done" in again.stderr
    assert kimi.machine.run(["cat", SEEN]).stdout == "ran\n"
    assert active(kimi) == "active"


def test_one_that_a_reboot_broke_is_gone_on_with_and_the_command_is_not_run_twice(kimi: Service) -> None:
    lose_terminal(kimi, f"snapshot kimi -- {WAITING}", "command *running")
    kimi.wait("the command runs", lambda: kimi.machine.run(f"cat {SEEN}", check=False).stdout, 60)
    break_off(kimi)
    assert active(kimi) == "inactive"
    refused = vsup(kimi, "snapshot", "kimi", "--", "true")
    assert refused.returncode == 75, refused.stderr
    assert "was begun and has not ended" in refused.stderr
    assert "or give it up with --abandon" in refused.stderr

    for _ in range(2):  # once it has ended, it is only told again
        again = vsup(kimi, "snapshot", "kimi", "--resume")
        assert again.returncode == 16, again.stderr
        assert "command failed: it was interrupted" in again.stderr
        assert kimi.machine.run(["cat", SEEN]).stdout == "ran\n"
        assert active(kimi) == "active"
    assert [line["step"] for line in record(kimi) if line.get("state") == "begun"].count("start") == 1
