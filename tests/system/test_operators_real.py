"""Every runbook, and an upgrade that fails, on a real engine under real systemd, beside a card of a fake NVML.

One goes on with the engine that the other left, because a start is what takes the time: the order counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.machine import Machine
from lab.models import tiny_model as make_tiny_model
from system import realwheel
from system.books import Book, restart, start
from system.cards import PLACE, VARIABLES, Cards
from system.newmachine import MODEL, PIP, NewMachine, registry
from system.operating import clean, states, vsup
from system.service import Service
from system.slowdisk import SlowDisk
from system.standin import WHEELS, link
from system.striking import Strikes

pytestmark = pytest.mark.timeout(900)

START_S = 500.0
SHELL = f"export {VARIABLES} {PIP}"


class Real:
    """kimi on a machine that was new: its card and what is left of the runbook for that."""

    def __init__(self, machine: Machine, folder: Path, site: Path, model: Path) -> None:
        self.service = Service(machine)
        self.site = site
        self.service.reset()
        clean(self.service)
        machine.run("rm -rf /opt/vllm /opt/vllm-0.3*")
        self.cards = Cards(self.service, 1)
        registry(self.service)
        self.offer("0.32.0")
        configure(self.service)
        self.machine = NewMachine(self.service, folder, model)

    def book(self, name: str) -> Book:
        """A runbook for a shell that sees the cards and the registry."""
        return Book(self.service, name, SHELL)

    def offer(self, version: str, *, broken: bool = False) -> None:
        """Let pip find this version on the machine."""
        wheels = self.service.machine.root / WHEELS.lstrip("/")
        realwheel.offer(wheels, version, self.site, broken=broken)

    def remove(self) -> None:
        """As before."""
        self.service.reset()
        clean(self.service)
        self.machine.remove()
        realwheel.remove(self.service)
        self.service.machine.run(["rm", "-rf", PLACE])


def configure(service: Service, readahead: str = "auto", **args: object) -> None:
    """An instance that is quick to name a hang and to end; `args` are more arguments of vLLM."""
    service.real(
        Path("/opt/vllm/bin/vllm"),
        Path(MODEL),
        tensor_parallel=1,
        args=args,
        # The cards are the supervisor's alone: with them vLLM would take itself for a build for CUDA.
        env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "PYTHONPATH": ""},
        device="cuda",
        smoke={"on_start": "off"},
        liveness={"mode": "report", "hang_after_s": 8.0, "canary_every_s": 3.0},
        stop={"drain_s": 3.0, "kill_after_s": 3.0},
        load={"readahead": readahead},
        stall={"loading_weights": 300.0},
    )


@pytest.fixture(scope="module")
def real(product: Machine, engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Installed, fetched, configured and started by the runbook."""
    (site,) = engine.parent.parent.glob("lib/python3*/site-packages")
    real = Real(product, tmp_path_factory.mktemp("new"), site, make_tiny_model("--shards", "6"))
    try:
        real.machine.first_hour(START_S)
        yield real
    finally:
        real.remove()


@pytest.fixture
def kimi(real: Real) -> Service:
    """It serves, whatever the test before left."""
    service = real.service
    if service.show("ActiveState")["ActiveState"] != "active":
        assert service.start(START_S).returncode == 0, service.journal()
    return service


def test_restart(kimi: Service) -> None:
    said = restart(kimi, START_S, SHELL)
    assert "nothing speaks against a start of kimi.service" in said
    assert "outage: about" in said


def test_snapshot(kimi: Service, real: Real) -> None:
    before, book = kimi.show("MainPID"), real.book("snapshot")
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


def test_hung_engine(kimi: Service, real: Real) -> None:
    strikes = Strikes(kimi)
    before = strikes.status()
    strikes.signal(before, "engine-core", "STOP")
    kimi.wait("the hang is named", lambda: strikes.status()["liveness"]["hung"], 120)
    book = real.book("hung-engine")
    said = book.run()
    assert "engine-hung" in said, said
    said = book.run(timeout=START_S)
    assert "smoke      done" in said
    assert "right" in said
    strikes.gone(before)
    kimi.wait("it is not called hung", lambda: strikes.status()["liveness"]["hung"] is False, 60)
    assert book.left == []


def test_gpu_lost_and_a_new_machine_undone(kimi: Service, real: Real) -> None:
    strikes, cards, book = Strikes(kimi), real.cards, real.book("gpu-lost")
    before = strikes.status()
    (core,) = strikes.pids(before, "engine-core")
    cards.card(0, processes=[[int(core), 40 << 30]], memory_used=41 << 30)
    held = re.compile(r"^vllm_supervisor_gpu_engine_bytes\{.*[1-9]", re.MULTILINE)
    kimi.wait("the engine's memory is seen", lambda: held.search(kimi.get("/metrics")[1]), 60)
    cards.xids = [[0, 0, 79]]
    cards.write()
    kimi.wait("the Xid is seen", lambda: "Xid 79" in kimi.journal(200), 60)
    cards.card(0, lost=True, processes=[], memory_used=0)
    shown = kimi.wait_state("failed", timeout=120)
    assert (shown["ExecMainStatus"], shown["NRestarts"]) == ("69", "0"), kimi.journal()
    strikes.gone(before)
    assert "gpu-lost" in book.run()
    refused = kimi.machine.run(["env", *VARIABLES.split(), "vllm-supervisor", "check", "kimi"], check=False)
    assert refused.returncode == 69, refused.stdout + refused.stderr
    cards.xids = []
    cards.card(0, lost=False)
    book.run(timeout=START_S)
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert book.left == []
    real.machine.undo()
    assert kimi.left_over() == ""


def test_start(real: Real) -> None:
    kimi = real.service
    book = start(kimi, SHELL)
    book.run()
    assert (kimi.show("ActiveState")["ActiveState"], book.left, kimi.left_over()) == ("inactive", [], "")


def test_slow_load(real: Real) -> None:
    """It loads from a disk that hands out the shards page by page, until its blocks were run."""
    kimi, strikes, book = real.service, Strikes(real.service), real.book("slow-load")
    kimi.stop()
    # Read ahead, the shards might be there before a slow machine has imported the engine.
    configure(kimi, readahead="off")
    with SlowDisk(kimi.machine, MODEL, "*.safetensors") as disk:
        kimi.start(block=False)
        kimi.wait_status("shard 2 of 6", START_S)
        assert re.search(r"shard [2-5] of 6", book.run())
        disk.rate(0)
        assert "files have the right hash" in book.run()
        assert book.left == []
        strikes.reach("ready", timeout=START_S)
        kimi.stop()


def test_out_of_memory(real: Real) -> None:
    kimi = real.service
    kimi.stop()
    configure(kimi, **{"max-model-len": 8 << 20})
    assert kimi.start(START_S).returncode != 0
    assert kimi.show("ExecMainStatus")["ExecMainStatus"] == "78", kimi.journal()
    book = real.book("out-of-memory")
    assert "kv-cache-too-small" in book.run()
    assert "max-model-len" in book.run()
    configure(kimi)
    assert "smoke      done" in book.run(timeout=START_S)
    assert book.left == []


def test_upgrade_and_roll_back(kimi: Service, real: Real) -> None:
    real.offer("0.32.1")
    book = real.book("upgrade")
    assert "vLLM 0.32.1 will be installed in /opt/vllm-0.32.1" in book.run(timeout=START_S)
    now = states(kimi)
    assert {now[step] for step in ("install", "check", "ahead", "switch", "restart", "wait", "smoke")} == {"done"}
    assert now["back"] == "skipped"
    assert book.run().startswith("/opt/vllm-0.32.1\n")
    runs_from(kimi, "/opt/vllm-0.32.1")
    assert "/opt/vllm-0.32.0 is there already" in book.run(timeout=START_S)
    runs_from(kimi, "/opt/vllm-0.32.0")
    assert book.left == []


def test_a_version_that_fails_is_left_again_unattended_and_its_incident_kept(kimi: Service, real: Real) -> None:
    before = link(kimi)
    real.offer("0.33.0", broken=True)
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.33.0", timeout=START_S)
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


def test_disk_full(kimi: Service, real: Real) -> None:
    book = real.book("disk-full")
    assert "/opt/vllm-0.32.1" in book.run()
    book.run()
    assert "ready" in book.run()
    assert book.left == []


def runs_from(kimi: Service, place: str) -> None:
    """The engine that serves is run by the interpreter of the environment at this place."""
    pid = Strikes(kimi).status()["engine"]["pid"]
    argv = kimi.machine.run(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
    assert argv[0].startswith(f"{place}/bin/python"), argv
