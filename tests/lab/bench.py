"""`make bench`: the targets of the design, each beside what a user would run otherwise, in one run.

Prints a table and, with `--write`, docs/benchmarks.md. Figures are for the machine that they were taken on; what is
compared is always taken in the same minute, as a ratio or side by side.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1]))

from lab import models, paths  # noqa: E402 - only importable from here on
from lab.bench_parts import Row, first_answer, output_rows, shell_loop  # noqa: E402
from process.harness import Daemon, free_port, write_config  # noqa: E402

REAL_S = 240.0
SETTINGS = {"smoke": {"on_start": "off"}}


def main() -> int:
    """Runs every row; 0 when all of them could be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20, help="starts of the scripted engine")
    parser.add_argument("--real", type=int, default=3, help="pairs of real starts; 0 leaves them out")
    parser.add_argument("--seconds", type=int, default=30, help="length of the measured stretch when ready")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    rows: list[Row] = []
    for step in (
        lambda: ready_rows(args.starts),
        lambda: cost_rows(args.seconds),
        output_rows,
        lambda: real_rows(args.real),
    ):
        for row in step():
            rows.append(row)
            print(" | ".join(row), flush=True)
    if args.write:
        (ROOT / "docs" / "benchmarks.md").write_text(_page(rows))
    return 0


def ready_rows(starts: int) -> list[Row]:
    """READY after the first answer that the engine could give, beside a shell loop in the same starts."""
    ours: list[float] = []
    loops: list[float] = []
    for number in range(starts):
        with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
            folder = Path(name)
            # Different lengths, so that a loop of one second meets every part of its second.
            config = write_config(folder, {"pace": 1.0 + number * 0.37 % 1.0}, **SETTINGS)
            daemon = Daemon(config, folder)
            with shell_loop(daemon.engine_port) as loop, first_answer(daemon.engine_port, "kimi") as first, daemon:
                assert daemon.notify
                ready, _ = daemon.notify.wait_for("READY", 60)
                answered = first.wait(30)
                ours.append(ready - answered)
                loops.append(loop.wait(30) - answered)
                daemon.sigterm()
                daemon.wait_exit(30)
    return [
        Row(
            f"READY after the first possible answer, {starts} starts, median (longest)",
            f"{median(ours) * 1000:.0f} ms ({max(ours) * 1000:.0f} ms)",
            f"shell loop on /health each second: {median(loops) * 1000:.0f} ms ({max(loops) * 1000:.0f} ms)",
            "<= 100 ms",
        )
    ]


def cost_rows(seconds: int) -> list[Row]:
    """CPU and memory of a ready supervisor with eight fake GPUs that is scraped once a second."""
    from fake.gpus import FakeGpus

    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        folder = Path(name)
        gpus = FakeGpus(folder)
        config = write_config(folder, {}, engine={"device": "cuda"}, **SETTINGS)
        nvml = {"VSUP_FAKE_NVML": str(gpus.path), "PYTHONPATH": gpus.environment["PYTHONPATH"]}
        with Daemon(
            config, folder, env={**nvml, "PYTHONPATH": f"{nvml['PYTHONPATH']}:{ROOT / 'supervisor'}"}
        ) as daemon:
            daemon.wait_phase("ready", timeout=60)
            daemon.wait(lambda: "gpu_memory_used_bytes" in daemon.get("/metrics").text, "GPUs in the scrape", 30)
            helper = _helper(daemon.pid)
            before, began = (_cpu(daemon.pid), _cpu(helper)), time.monotonic()
            scrapes: list[float] = []
            while time.monotonic() - began < seconds:
                at = time.monotonic()
                daemon.get("/metrics")
                scrapes.append(time.monotonic() - at)
                time.sleep(max(1.0 - (time.monotonic() - at), 0.0))
            took = time.monotonic() - began
            own, other = (_cpu(daemon.pid) - before[0]) / took, (_cpu(helper) - before[1]) / took
            resident = _rss(daemon.pid) + _rss(helper)
            daemon.sigterm()
            daemon.wait_exit(30)
    ordered = sorted(scrapes)
    return [
        Row(
            "CPU when ready, 8 fake GPUs, scraped each second",
            f"{own:.2%} of a core",
            f"its helper {other:.2%}",
            "<= 1 %",
        ),
        Row("resident memory with its helper", f"{resident / 1e6:.0f} MB", "-", "<= 100 MB"),
        Row(
            "/metrics, 8 GPUs, engine merged, median (longest)",
            f"{median(scrapes) * 1000:.1f} ms ({ordered[-1] * 1000:.1f} ms)",
            "the engine's own answer is in it",
            "p99 <= 10 ms beyond the engine",
        ),
    ]


def real_rows(pairs: int) -> list[Row]:
    """A real engine to its first answer: alone, and under the supervisor, in turn."""
    if not pairs:
        return []
    model = models.tiny_model()
    bare = [_seconds(lambda: _bare(model)) for _ in range(pairs)]
    under = [_seconds(lambda: _under(model)) for _ in range(pairs)]
    return [
        Row(
            f"start of a real engine to the first answer, {pairs} pairs, median",
            f"{median(under):.1f} s, ratio {median(under) / median(bare):.3f}",
            f"bare `vllm serve`: {median(bare):.1f} s",
            "ratio <= 1.02",
        )
    ]


def _seconds(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


_ARGS = {"max-model-len": 1024, "enforce-eager": True, "max-num-seqs": 4}
_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _bare(model: Path) -> None:
    port = free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "kimi", "--max-model-len", "1024"]
    command = [str(paths.vllm()), "serve", str(model), *flags, "--enforce-eager", "--max-num-seqs", "4"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, env={**os.environ, **_ENV}, start_new_session=True, **quiet)
    try:
        with first_answer(port, "kimi") as first:
            first.wait(REAL_S)
    finally:
        child.terminate()
        child.wait(60)


def _under(model: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        engine = {"command": [str(paths.vllm()), "serve"], "model": str(model), "args": _ARGS, "env": _ENV}
        config = write_config(Path(name), {}, engine=engine, **SETTINGS)
        with Daemon(config, Path(name)) as daemon:
            assert daemon.notify
            daemon.notify.wait_for("READY", REAL_S)
            daemon.sigterm()
            daemon.wait_exit(60)


def _helper(pid: int) -> int:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "adapters.nvml"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _page(rows: list[Row]) -> str:
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    )
    lines = [
        "# Benchmarks\n",
        f"`make bench ARGS=--write` wrote this page, on {machine}, {time.strftime('%Y-%m-%d')}. The scripted engine is",
        "`tests/fake`; on real GPUs the same was measured beside nvitop-exporter: [gpu](gpu/README.md).\n",
        "| what | measured | beside it | target |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
