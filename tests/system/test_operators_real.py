"""Started, restarted, snapshot taken, hung, upgraded and rolled back: a real engine by the runbooks and by `upgrade`.

One goes on with the engine that the other left, because a start is what takes the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.machine import Machine
from process.fakes import write_model
from system import realwheel
from system.books import Book, restart, start
from system.operating import clean, states, vsup
from system.service import Service
from system.standin import PIP, WHEELS, link
from system.striking import Strikes

pytestmark = pytest.mark.timeout(900)

START_S = 500.0
MODEL = "/shared/kimi-k2.5-nvfp4"


@pytest.fixture(scope="module")
def started(product: Machine, engine: Path, tiny_model: Path) -> Iterator[Service]:
    """kimi behind the link /opt/vllm, started and in the end stopped by the runbook."""
    service = Service(product)
    service.reset()
    clean(service)
    product.run(f"rm -rf /opt/vllm /opt/vllm-0.3*; ln -s {engine.parent.parent} /opt/vllm")
    configure(service, tiny_model)
    book = start(service)
    yield service
    book.run()
    assert service.show("ActiveState")["ActiveState"] == "inactive"
    assert book.left == []
    assert service.left_over() == ""
    service.reset()
    clean(service)
    realwheel.remove(service)


def configure(service: Service, model: Path, **args: object) -> None:
    """An instance that is quick to name a hang and to end; `args` are more arguments of vLLM."""
    service.real(
        Path("/opt/vllm/bin/vllm"),
        model,
        tensor_parallel=1,
        args=args,
        env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
        smoke={"on_start": "off"},
        liveness={"mode": "report", "hang_after_s": 8.0, "canary_every_s": 3.0},
        stop={"drain_s": 3.0, "kill_after_s": 3.0},
    )


@pytest.fixture
def kimi(started: Service) -> Service:
    """It serves, whatever the test before left."""
    if started.show("ActiveState")["ActiveState"] != "active":
        assert started.start(START_S).returncode == 0, started.journal()
    return started


def test_restart(kimi: Service) -> None:
    said = restart(kimi, START_S)
    assert "nothing speaks against a start of kimi.service" in said
    assert "outage: about" in said


def test_snapshot(kimi: Service) -> None:
    before, book = kimi.show("MainPID"), Book(kimi, "snapshot")
    said = book.run(timeout=START_S)
    assert "command    done" in said
    assert "smoke      done" in said
    after = kimi.show("MainPID")
    assert after != before
    assert "command    done" in book.run()
    assert kimi.show("MainPID") == after
    assert "nothing differs" in book.run()
    assert book.left == []
    manifest = json.loads(kimi.machine.run(["cat", "/srv/kimi-before.json"]).stdout)
    assert manifest["versions"]["vllm"].startswith("0.32.0"), manifest["versions"]


def test_hung_engine(kimi: Service) -> None:
    strikes = Strikes(kimi)
    before = strikes.status()
    strikes.signal(before, "engine-core", "STOP")
    kimi.wait("the hang is named", lambda: strikes.status()["liveness"]["hung"], 120)
    book = Book(kimi, "hung-engine")
    said = book.run()
    assert "engine-hung" in said, said
    said = book.run(timeout=START_S)
    assert "smoke      done" in said
    assert "right" in said
    strikes.gone(before)
    kimi.wait("it is not called hung", lambda: strikes.status()["liveness"]["hung"] is False, 60)
    assert book.left == []


def test_out_of_memory(kimi: Service, tiny_model: Path) -> None:
    kimi.stop()
    configure(kimi, tiny_model, **{"max-model-len": 8 << 20})
    assert kimi.start(START_S).returncode != 0
    assert kimi.show("ExecMainStatus")["ExecMainStatus"] == "78", kimi.journal()
    book = Book(kimi, "out-of-memory")
    said = book.run()
    assert "kv-cache-too-small" in said
    assert "max-model-len" in said
    write_model(kimi.machine.root / MODEL.lstrip("/"))
    try:
        assert "max-model-len" in book.run()
    finally:
        kimi.machine.run(["rm", "-r", MODEL])
    configure(kimi, tiny_model)
    assert "smoke      done" in book.run(timeout=START_S)
    assert book.left == []


def test_a_version_that_serves_is_switched_to(kimi: Service, engine: Path) -> None:
    offer(kimi, engine, "0.32.1")
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.1", "--pip-args", PIP, timeout=START_S)
    assert done.returncode == 0, done.stderr + kimi.journal()
    assert link(kimi) == "/opt/vllm-0.32.1"
    now = states(kimi)
    assert {now[step] for step in ("install", "check", "ahead", "switch", "restart", "wait", "smoke")} == {"done"}
    assert now["back"] == "skipped"
    runs_from(kimi, "/opt/vllm-0.32.1")


def test_a_version_that_fails_is_left_again_unattended_and_its_incident_kept(kimi: Service, engine: Path) -> None:
    before = link(kimi)
    offer(kimi, engine, "0.33.0", broken=True)
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.33.0", "--pip-args", PIP, timeout=START_S)
    assert done.returncode == 18, done.stderr + kimi.journal()
    assert "wait failed: driver-mismatch: " in done.stderr.splitlines()[-1], done.stderr
    assert link(kimi) == before
    now = states(kimi)
    assert {now[step] for step in ("back", "back-restart", "back-wait", "back-smoke")} == {"done"}
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    runs_from(kimi, before)
    (kept,) = kimi.machine.run("ls -d /var/lib/vllm-supervisor-operations/kimi/incident-0.33.0-*").stdout.split()
    assert kept.endswith("driver-mismatch")
    output = kimi.machine.run(f"cat {kept}/*.log {kept}/*.txt", check=False).stdout
    assert "The NVIDIA driver on your system is too old (found version 12040)" in output
    assert "Engine core initialization failed. See root cause above." in output


def test_disk_full(kimi: Service) -> None:
    book = Book(kimi, "disk-full")
    assert "/opt/vllm-0.32.1" in book.run()
    book.run()
    assert "ready" in book.run()
    assert book.left == []


def offer(kimi: Service, engine: Path, version: str, *, broken: bool = False) -> None:
    """Let pip find this version on the machine."""
    (site,) = engine.parent.parent.glob("lib/python3*/site-packages")
    realwheel.offer(kimi.machine.root / WHEELS.lstrip("/"), version, site, broken=broken)


def runs_from(kimi: Service, place: str) -> None:
    """The engine that serves is run by the interpreter of the environment at this place."""
    pid = Strikes(kimi).status()["engine"]["pid"]
    argv = kimi.machine.run(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
    assert argv[0].startswith(f"{place}/bin/python"), argv
