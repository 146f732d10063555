"""Runbooks: in the situation that each is for, its marked blocks are run in their order and show what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.fakes import write_model
from system.books import BOOKS, Book, restart, start
from system.cards import PLACE, VARIABLES, Cards
from system.hub import TOKEN, URL, Hub
from system.newmachine import MODEL
from system.operating import clean, fake
from system.service import Service

HERE = Path(__file__).parent
TOO_SMALL = "/srv/corpus/failure-logs/kv-cache-too-small-v0.32.log"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    clean(service)
    fake(service, {})
    yield service
    clean(service)
    service.machine.run(f"systemctl disable kimi; rm -rf {MODEL} {PLACE}", check=False)


def test_start(kimi: Service) -> None:
    book = start(kimi)
    book.run()
    assert kimi.show("ActiveState")["ActiveState"] == "inactive"
    assert book.left == []


def test_restart(kimi: Service) -> None:
    assert kimi.start().returncode == 0, kimi.journal()
    restart(kimi)


def test_snapshot(kimi: Service) -> None:
    assert kimi.start().returncode == 0, kimi.journal()
    book = Book(kimi, "snapshot")
    for said in ("smoke      done", "command    done", "nothing differs"):
        assert said in book.run()
    assert book.left == []


def test_hung_engine(kimi: Service) -> None:
    assert kimi.start().returncode == 0, kimi.journal()
    book = Book(kimi, "hung-engine")
    assert "ready" in book.run()
    assert "smoke      done" in book.run()
    assert book.left == []


def test_out_of_memory(kimi: Service) -> None:
    write_model(kimi.machine.root / MODEL.lstrip("/"))
    fake(kimi, {"fail_with": TOO_SMALL})
    assert kimi.start().returncode != 0
    assert kimi.show("ExecMainStatus")["ExecMainStatus"] == "78", kimi.journal()
    book = Book(kimi, "out-of-memory")
    said = book.run()
    assert "kv-cache-too-small" in said
    assert "max-model-len" in said
    assert "max-model-len" in book.run()
    fake(kimi, {}, args={"max-model-len": 8192})
    assert "smoke      done" in book.run()
    assert book.left == []


def test_gpu_lost(kimi: Service) -> None:
    fake(kimi, {}, args={"tensor-parallel-size": 2}, device="cuda")
    cards, book = Cards(kimi), Book(kimi, "gpu-lost", f"export {VARIABLES}")
    assert kimi.start().returncode == 0, kimi.journal()
    workers = kimi.machine.run("pgrep -u vllm -x VLLM::Worker_TP").stdout.split()
    for index, worker in enumerate(workers):
        cards.card(index, processes=[[int(worker), 40 << 30]], memory_used=41 << 30)
    held = re.compile(r"^vllm_supervisor_gpu_engine_bytes\{.*[1-9]", re.MULTILINE)
    kimi.wait("the engine's memory is seen", lambda: held.search(kimi.get("/metrics")[1]), 30)
    cards.xids = [[0, 1, 79]]
    cards.write()
    kimi.wait("the Xid is seen", lambda: "Xid 79" in kimi.journal(200), 30)
    cards.state = [{}, {"lost": True}]
    cards.write()
    shown = kimi.wait_state("failed")
    assert (shown["ExecMainStatus"], shown["NRestarts"]) == ("69", "0"), kimi.journal()
    assert "gpu-lost" in book.run()
    refused = kimi.machine.run(["env", *VARIABLES.split(), "vllm-supervisor", "check", "kimi"], check=False)
    assert refused.returncode == 69, refused.stdout + refused.stderr
    cards.xids = []
    cards.card(1, lost=False)
    book.run()
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert book.left == []


def test_slow_load(kimi: Service, tmp_path: Path) -> None:
    hub = Hub(kimi.machine, write_model(tmp_path / "model"))
    try:
        hub.serve()
        fetch = f"install -d {MODEL}; HF_ENDPOINT={URL} HF_TOKEN={TOKEN} vllm-supervisor fetch nvidia/Kimi-K2.5-NVFP4"
        kimi.machine.run(f"{fetch} --to {MODEL}", timeout=60)
        hub.stop()
        assert kimi.start().returncode == 0, kimi.journal()
        kimi.stop()
        fake(kimi, {"cut_at": 2})
        kimi.start(block=False)
        kimi.wait_status("shard 2 of 4")
        book = Book(kimi, "slow-load")
        assert "shard 2 of 4" in book.run()
        assert f"all {len(hub.files)} files have the right hash" in book.run()
        assert book.left == []
    finally:
        hub.remove()


def test_disk_full(kimi: Service) -> None:
    assert kimi.start().returncode == 0, kimi.journal()
    book = Book(kimi, "disk-full")
    book.run()
    book.run()
    assert "ready" in book.run()
    assert book.left == []


def test_no_runbook_with_marked_blocks_is_left_out() -> None:
    """Two take long to prepare and are run on a real engine alone; one needs two machines (test_two_nodes.py)."""
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    marked = {path.stem for path in BOOKS.glob("*.md") if "```sh\n# run\n" in path.read_text()}
    assert marked - tested == {"new-machine", "two-nodes", "upgrade"}


def test_every_runbook_with_marked_blocks_is_run_on_a_real_engine() -> None:
    real = "".join(
        (HERE / name).read_text()
        for name in ("test_operators_real.py", "newmachine.py", "books.py", "test_two_nodes.py")
    )
    marked = {path.stem for path in BOOKS.glob("*.md") if "```sh\n# run\n" in path.read_text()}
    assert {name for name in marked if not re.search(rf'[Bb]ook\([^)]*"{name}"', real)} == set()
