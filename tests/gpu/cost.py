"""What watching costs: scrapes and sampling on real NVML, idle and under load, beside nvitop-exporter."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import load
from eyes import Nvml
from instance import Instance
from machine import Lab

NVITOP_PORT = 9555
ROUND = """
import json, sys, time
import pynvml as nv
from vllm_supervisor.adapters.nvml.boards import Board
nv.nvmlInit()
boards = [Board(nv, index) for index in range(nv.nvmlDeviceGetCount())]
for board in boards: board.read()
took = []
for _ in range(60):
    began = time.perf_counter()
    for board in boards: board.read()
    took.append((time.perf_counter() - began) * 1e3)
    time.sleep(0.05)
took.sort()
print(json.dumps({"boards": len(boards), "median_ms": took[30], "max_ms": took[-1]}))
"""


def cost(lab: Lab, nvml: Nvml, instance: Instance, seconds: float = 20.0) -> None:
    """Idle, then under load: CPU and memory of both over a stretch with one scrape a second, then scrapes in a row."""
    lab.need(2 * seconds + 25, "cost")
    nvitop = _nvitop(lab)
    try:
        _measure(lab, nvml, instance, nvitop, label="idle", seconds=seconds)
        with contextlib.ExitStack() as stack:
            stack.enter_context(load.Busy(instance.port, 16, 256 if lab.device == "cuda" else 16))
            hot = []
            if lab.gpus and not lab.fake:
                hot = [
                    load.helper(sys.executable, load.HOT, str(gpu), str(seconds + 15), env=dict(os.environ))
                    for gpu in range(lab.gpus)
                ]
            _measure(lab, nvml, instance, nvitop, label="load", seconds=seconds)
            for process in hot:
                process.kill()
                process.wait()
    finally:
        if nvitop:
            nvitop.kill()
            nvitop.wait()


def _nvitop(lab: Lab) -> subprocess.Popen[bytes] | None:
    """The exporter on a port of its own, as the same user; None where it is not installed."""
    command = lab.confined([lab.python, "-m", "nvitop_exporter", "--port", str(NVITOP_PORT), "--interval", "1"])
    log = (lab.directories("nvitop") / "log").open("wb")
    process = subprocess.Popen(command, env=lab.environment("nvitop"), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 10
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            _scrape(NVITOP_PORT)
            return process
        time.sleep(0.2)
    process.kill()
    process.wait()
    text = (lab.work / "nvitop" / "log").read_text(errors="replace")
    lab.out.record("nvitop-missing", error=text[-600:])
    return None


def _scrape(port: int) -> tuple[float, int, int]:
    import http.client

    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    began = time.perf_counter()
    with contextlib.closing(link):
        link.request("GET", "/metrics")
        body = link.getresponse().read()
    return (
        (time.perf_counter() - began) * 1e3,
        len(body),
        sum(line[:1] not in b"#" for line in body.splitlines() if line),
    )


def _measure(lab: Lab, nvml: Nvml, instance: Instance, nvitop: Any, *, label: str, seconds: float) -> None:
    pids = {"supervisor": instance.daemon_pids()[:1], "nvml-helper": instance.daemon_pids()[1:]}
    ports = {"supervisor": instance.metrics_port}
    if nvitop:
        pids["nvitop"], ports["nvitop"] = [nvitop.pid], NVITOP_PORT
    began = {name: sum(map(_cpu, group)) for name, group in pids.items()}
    start, each = time.monotonic(), {name: [] for name in ports}
    while time.monotonic() - start < seconds:
        for name, port in ports.items():
            each[name].append(_scrape(port)[0])
        time.sleep(1)
    took = time.monotonic() - start
    share = {name: round((sum(map(_cpu, group)) - began[name]) / took * 100, 3) for name, group in pids.items()}
    resident = {name: round(sum(map(_resident, group)) / 2**20, 1) for name, group in pids.items()}
    row: dict[str, list[tuple[float, int, int]]] = {name: [] for name in ports}
    for _ in range(100):
        for name, port in ports.items():
            row[name].append(_scrape(port))
    rounds = instance.lab.confined([lab.python, "-c", ROUND])
    done = subprocess.run(
        rounds, env=lab.environment("cost"), capture_output=True, text=True, timeout=60, check=False, cwd=lab.work
    )
    lab.out.record(
        "cost", condition=label, seconds=round(took, 1), cpu_percent_of_a_core=share, resident_mib=resident,
        once_a_second_ms={name: _shape(values) for name, values in each.items()},
        in_a_row_ms={name: _shape([ms for ms, _, _ in values]) for name, values in row.items()},
        page={name: {"bytes": values[-1][1], "series": values[-1][2]} for name, values in row.items()},
        sampling=(done.stdout or done.stderr)[-300:].strip(), gpus=nvml.window(start, start + took),
    )  # fmt: skip


def _shape(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    place = min(len(ordered) - 1, int(len(ordered) * 0.99))
    return {
        "median": round(statistics.median(ordered), 2),
        "p99": round(ordered[place], 2),
        "max": round(ordered[-1], 2),
    }


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
