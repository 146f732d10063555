"""`restart` under real systemd: refused before the outage, drained, back and right; a lost terminal loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from system.operating import FINISH, UNIT, clean, fake, held, kill_at, kills_left, lose_terminal, record, states, vsup
from system.service import Service

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    clean(service)
    fake(service, {}, smoke={"on_start": "off"})
    assert service.start().returncode == 0, service.journal()
    yield service
    clean(service)


def pid(service: Service) -> str:
    return service.show("MainPID")["MainPID"]


def test_it_checks_restarts_waits_and_asks(kimi: Service) -> None:
    before = pid(kimi)
    other = vsup(kimi, "restart", "kimi", "--dry-run", user="nobody")
    closed = "/etc/vllm-supervisor/kimi.env may not be read by you: run as root or as the service's user"
    assert (other.returncode, other.stdout, other.stderr) == (77, "", f"vllm-supervisor restart: {closed}\n")
    dry = vsup(kimi, "restart", "kimi", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "nothing speaks against a start of kimi.service" in dry.stdout
    assert "by the last start" in dry.stdout
    assert "up to 30 s for running requests" in dry.stdout
    assert pid(kimi) == before

    done = vsup(kimi, "restart", "kimi")
    assert done.returncode == 0, done.stderr
    assert states(kimi) == {"check": "done", "ahead": "done", "restart": "done", "wait": "done", "smoke": "done"}
    assert pid(kimi) not in {"0", before}
    assert "Paris" in done.stderr
    assert "ready after" in done.stderr
    (read,) = [line["text"] for line in record(kimi) if line.get("step") == "ahead" and line["state"] == "done"]
    assert "in 1 shard in memory" in read or "lies in memory already" in read, read
    assert kimi.show("ActiveState")["ActiveState"] == "active"


def test_a_wrong_configuration_is_refused_before_the_outage(kimi: Service) -> None:
    before = pid(kimi)
    fake(kimi, {}, args={"no-such-option-at-all": True})
    kimi.configure({"command": ["/opt/nothing/bin/vllm", "serve"], "model": "/srv/model"})
    done = vsup(kimi, "restart", "kimi")
    assert done.returncode == 10, done.stderr
    assert "refused before the outage: kimi.service stays active" in done.stderr
    assert pid(kimi) == before
    assert record(kimi) == []


def test_a_start_that_fails_is_said_with_its_cause(kimi: Service) -> None:
    fake(kimi, {"fail_with": "/srv/corpus/failure-logs/kv-cache-too-small-v0.32.log"})
    done = vsup(kimi, "restart", "kimi")
    assert done.returncode == 20, done.stderr
    assert "178720" in done.stderr
    assert states(kimi)["smoke"] == "skipped"


def test_a_wrong_answer_is_an_exit_code_of_its_own(kimi: Service) -> None:
    fake(kimi, {"answer": "The capital of France is Rome.", "reasoning": "Hm ."}, smoke={"on_start": "off"})
    done = vsup(kimi, "restart", "kimi")
    assert done.returncode == 17, done.stderr
    assert kimi.show("ActiveState")["ActiveState"] == "active"


def test_only_root_may_and_everybody_may_ask(kimi: Service) -> None:
    kimi.machine.run("useradd -m person 2>/dev/null", check=False)
    refused = vsup(kimi, "restart", "kimi", user="person")
    assert refused.returncode == 77, refused.stderr
    assert "only root may restart an instance" in refused.stderr


def test_a_lost_terminal_does_not_end_it_and_resume_follows(kimi: Service) -> None:
    held(kimi)
    before = pid(kimi)
    lose_terminal(kimi, "restart kimi", "restart *draining")
    assert kimi.show("ActiveState")["ActiveState"] != "failed"
    busy = vsup(kimi, "restart", "kimi")
    assert busy.returncode == 75, busy.stderr
    assert "restart of kimi is under way" in busy.stderr
    again = kimi.machine.run(
        f"{FINISH} & vllm-supervisor restart kimi --resume; code=$?; wait; exit $code", check=False, timeout=90
    )
    assert again.returncode == 0, again.stderr
    assert pid(kimi) not in {"0", before}
    other = vsup(kimi, "snapshot", "kimi", "--resume")
    assert other.returncode == 64
    assert "the last operation on it was a restart" in other.stderr


def test_killed_at_every_step_it_goes_on(kimi: Service) -> None:
    before = pid(kimi)
    steps = ["check", "ahead", "restart", "wait", "smoke"]
    kill_at(kimi, *(f"{step} begun" for step in steps), "restart done")
    done = vsup(kimi, "restart", "kimi", timeout=200)
    assert kills_left(kimi) == "", done.stderr
    assert done.returncode == 0, done.stderr + kimi.machine.journal(UNIT)
    assert pid(kimi) not in {"0", before}
    assert kimi.show("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    began = kimi.machine.run("journalctl -u kimi -o cat | grep -c 'starts kimi (attempt'").stdout
    assert int(began) == 2, "one restart, however often it was interrupted"
