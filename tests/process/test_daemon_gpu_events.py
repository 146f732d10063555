"""What NVML itself reports of an Xid, through a whole daemon: a fault where it proves one, on a GPU of ours."""

from __future__ import annotations

import os
from pathlib import Path

from fake.gpus import FAKE_NVML, FakeGpus
from process.daemon_tools import ended, incident, running, samples, until_ready
from process.harness import SOURCE

CUDA = {"device": "cuda", "args": {"tensor-parallel-size": 2}}


def with_gpus(folder: Path) -> tuple[FakeGpus, dict[str, str]]:
    gpus = FakeGpus(folder, count=3)
    return gpus, {"VSUP_FAKE_NVML": str(gpus.path), "PYTHONPATH": f"{FAKE_NVML}{os.pathsep}{SOURCE}"}


def hold(daemon, gpus: FakeGpus) -> None:
    """The workers hold memory of the first two cards, and the daemon has seen it."""
    workers = daemon.control("stats")["workers"]
    for index, worker in enumerate(workers):
        gpus.card(index, processes=[[worker, 40 << 30]], memory_used=41 << 30)

    def seen() -> bool:
        page = samples(daemon.get("/metrics").text)
        mine = {name: labels for (name, labels), size in page.items() if size and name.endswith("_gpu_engine_bytes")}
        return bool(mine)

    daemon.wait(seen, "the engine's memory is seen")


def test_an_xid_that_nvml_reports_ends_with_69_on_a_gpu_of_ours_alone(tmp_path):
    gpus, env = with_gpus(tmp_path)
    with running(tmp_path, {"pace": 0}, engine=CUDA, env=env) as daemon:
        until_ready(daemon)
        hold(daemon, gpus)
        gpus.write(xid=[[0, 2, 79], [1, 0, 13]])  # a lost card of others; a fault of a program on ours
        daemon.wait(lambda: "NVML: Xid 79 on GPU 2" in daemon.log(), "a word about the other card")
        daemon.wait(lambda: "NVML: Xid 13 on GPU 0" in daemon.log(), "a word about the program")
        assert daemon.status()["phase"] == "ready"
        page = samples(daemon.get("/metrics").text)
        name = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
        labels = {"gpu": "2", "uuid": "GPU-00000002", "name": name, "xid": "79"}
        assert page["vllm_supervisor_gpu_xid_errors_total", frozenset(labels.items())] == 1.0

        def troubles() -> list[str | None]:
            return [row.get("trouble") for row in daemon.status()["gpus"]]

        gpus.card(2, lost=True)
        daemon.wait(lambda: troubles() == [None, None, "lost: it fell off the bus"], "the lost card keeps its row")
        gpus.card(2, lost=False)
        daemon.wait(lambda: troubles() == [None] * 3, "the card that came back")
        gpus.write(xid=[[0, 2, 79], [1, 0, 13], [2, 1, 48]])
        row = ended(daemon, 69, "gpu-fault")
        assert "Xid 48 on GPU 1" in row["sentence"]
        assert incident(daemon)["cause"]["evidence"].startswith("NVML: Xid 48 on GPU 1")
