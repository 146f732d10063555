"""`snapshot` beside GPUs: whoever still holds them is named and nothing is snapshot; the manifest knows driver and cards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from system.cards import PLACE, VARIABLES, Cards
from system.operating import clean, fake, record, states
from system.service import Service

pytestmark = pytest.mark.timeout(240)

SEEN = "/run/seen-by-the-command"
MANIFEST = "/run/before.json"
HELD = 3 << 30
"""More than the driver's own part, and so little that a start only warns of it."""


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    """kimi on two cards; a process that is none of it is `stranger`."""
    clean(service)
    fake(service, {}, args={"tensor-parallel-size": 2}, device="cuda")
    service.machine.run("systemd-run --quiet --collect --unit stranger --uid nobody sleep infinity")
    yield service
    clean(service)
    service.machine.run(f"systemctl stop kimi stranger; rm -rf {SEEN} {MANIFEST} {PLACE}", timeout=60)


@pytest.fixture
def cards(kimi: Service) -> Cards:
    """Its cards; as soon as it has stopped, the stranger holds the second one."""
    cards = Cards(kimi)
    stranger = int(kimi.machine.show("stranger", "MainPID"))
    cards.state[1] = {"memory_used": HELD, "processes": [[stranger, HELD]]}
    cards.write("held.json")
    cards.state[1] = {}
    swap = f"cp -p {PLACE}/held.json {PLACE}/now.json && mv {PLACE}/now.json {PLACE}/gpus.json"
    kimi.override(f"[Service]\nExecStopPost=+/bin/sh -c '{swap}'\n")
    assert kimi.start().returncode == 0, kimi.journal()
    return cards


def snapshot(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["env", *VARIABLES.split(), "vllm-supervisor", "snapshot", *arguments]
    return service.machine.run(command, check=False, timeout=90)


def test_memory_that_a_stranger_holds_is_named_and_the_service_comes_back(kimi: Service, cards: Cards) -> None:
    before, stranger = kimi.show("MainPID"), kimi.machine.show("stranger", "MainPID")
    done = snapshot(kimi, "kimi", "--free-within", "1", "--manifest", MANIFEST, "--", "touch", SEEN)
    assert done.returncode == 13, done.stderr
    who = f"pid {stranger} (sleep, user nobody) of stranger.service: 3072 MiB; stop that process"
    said = f"gpus failed: 1.0 s after the stop GPU 1 still holds 3.0 GiB, held by {who}"
    assert said in done.stderr.splitlines()[-1], done.stderr
    assert kimi.machine.run(f"ls {SEEN} {MANIFEST}", check=False).stdout == ""
    now = states(kimi)
    assert [now[step] for step in ("stop", "gpus", "sync", "manifest", "command")] == [
        "done",
        "failed",
        *["skipped"] * 3,
    ]
    assert [now[step] for step in ("start", "wait", "smoke")] == ["done"] * 3
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    after = kimi.show("MainPID")
    assert after != before

    refused = snapshot(kimi, "kimi", "--", "touch", SEEN)
    assert refused.returncode == 10, refused.stderr
    seen = (
        f"GPU 1 would not be free after the stop: it is held by pid {stranger} (sleep, user nobody) of stranger.service"
    )
    assert seen in refused.stdout
    assert "refused before the outage: kimi.service stays active" in refused.stderr
    assert kimi.show("MainPID") == after


def test_it_waits_for_the_memory_and_the_manifest_knows_driver_and_cards(kimi: Service, cards: Cards) -> None:
    kimi.machine.run(
        f"env {VARIABLES} vllm-supervisor snapshot kimi --free-within 60 --manifest {MANIFEST} "
        f"-- cp {MANIFEST} {SEEN} >/run/waits.log 2>&1 &"
    )
    held = "GPU 1 still holds"
    kimi.wait("the holder is told", lambda: any(held in line.get("say", "") for line in record(kimi)), 60)
    cards.write()
    done = snapshot(kimi, "kimi", "--resume", "--", "true")
    assert done.returncode == 0, done.stderr
    (free,) = [line["text"] for line in record(kimi) if line.get("step") == "gpus" and line["state"] == "done"]
    assert free == "every GPU is free"
    manifest = json.loads(kimi.machine.run(["cat", SEEN]).stdout)
    assert manifest["versions"]["driver"] == "580.95.05"
    card = f"NVIDIA RTX PRO 6000 Blackwell Workstation Edition, {97887 << 20} bytes"
    assert manifest["gpus"] == {"GPU-00000000": card, "GPU-00000001": card}

    same = snapshot(kimi, "verify", MANIFEST)
    assert (same.returncode, same.stdout[:15]) == (0, "nothing differs"), same.stdout + same.stderr
    cards.driver = "590.44.01"
    cards.card(1, uuid="GPU-new")
    other = snapshot(kimi, "verify", MANIFEST)
    assert other.returncode == 1, other.stderr
    assert other.stdout.splitlines() == [
        "versions: driver is 590.44.01, it was 580.95.05",
        f"gpus: GPU-00000001 is gone (it was {card})",
        f"gpus: GPU-new is new ({card})",
    ]
