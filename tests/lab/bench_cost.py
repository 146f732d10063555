"""What watching costs: CPU, memory and a scrape with eight GPUs, beside nvitop-exporter in the same minute.

Both read the same stand-in of NVML's library (nvml_stub.c) through the real Python binding, so both pay for that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from lab.bench_parts import Row
from process.harness import Daemon, free_port, http_get, wait_until, write_config

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
NVITOP = "nvitop-exporter==1.7.2"


def cost_rows(seconds: int) -> list[Row]:
    """A ready supervisor and nvitop-exporter, each scraped once a second over the same stretch."""
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        folder = Path(name)
        hang = folder / "hang"
        library = {"LD_LIBRARY_PATH": str(_library(folder)), "NVML_STUB_HANG": str(hang)}
        config = write_config(folder, {}, engine={"device": "cuda"}, smoke={"on_start": "off"})
        with Daemon(config, folder, env=library) as daemon, nvitop(folder, library) as (beside, port):
            daemon.wait_phase("ready", timeout=60)
            daemon.wait(lambda: "gpu_memory_used_bytes" in daemon.get("/metrics").text, "GPUs in the scrape", 30)
            pids = {"own": daemon.pid, "helper": _helper(daemon.pid), "nvitop": beside.pid}
            quiet = _stretch(daemon, port, seconds, pids)
            resident = {name: _rss(pid) / 1e6 for name, pid in pids.items()}
            hang.touch()
            daemon.wait(lambda: 'gpu_up{gpu="0"' in _zero(daemon), "the GPU whose call hangs is told", 60)
            theirs: list[float] = []
            hung = _scrapes(daemon, seconds // 2, lambda: theirs.append(_timed(port)))
            hang.unlink()
            daemon.sigterm()
            daemon.wait_exit(30)
    return _rows(quiet, resident, hung, theirs, seconds)


def _rows(
    quiet: dict[str, list[float]], resident: dict[str, float], hung: list[float], hung_theirs: list[float], seconds: int
) -> list[Row]:
    own, helper, other = (quiet[name][0] * 100 for name in ("own", "helper", "nvitop"))
    scrapes, theirs = quiet["beyond"], quiet["nvitop scrape"]
    total = resident["own"] + resident["helper"]
    return [
        Row(
            f"CPU of one core when ready, 8 GPUs, scraped each second for {seconds} s",
            f"{own + helper:.2f} % (daemon {own:.2f}, NVML helper {helper:.2f})",
            f"nvitop-exporter: {other:.2f} %, ratio {(own + helper) / other:.2f}",
            "<= 1 %",
            own + helper,
            other,
            1,
        ),
        Row(
            "resident memory with its helper",
            f"{total:.0f} MB (daemon {resident['own']:.0f}, helper {resident['helper']:.0f})",
            f"nvitop-exporter: {resident['nvitop']:.0f} MB",
            "<= 100 MB",
            total,
            resident["nvitop"],
            100,
        ),
        Row(
            f"/metrics beyond the engine's own answer, 8 GPUs, {len(scrapes)} scrapes, median (p99)",
            f"{median(scrapes) * 1000:.1f} ms ({_p99(scrapes) * 1000:.1f} ms)",
            f"nvitop-exporter's whole answer: {median(theirs) * 1000:.1f} ms ({_p99(theirs) * 1000:.1f} ms)",
            "p99 <= 10 ms",
            _p99(scrapes) * 1000,
            _p99(theirs) * 1000,
            10,
        ),
        Row(
            f"the same while an NVML call hangs, {len(hung)} scrapes, median (p99)",
            f"{median(hung) * 1000:.1f} ms ({_p99(hung) * 1000:.1f} ms)",
            f"nvitop-exporter's whole answer: {median(hung_theirs) * 1000:.1f} ms ({_p99(hung_theirs) * 1000:.1f} ms)",
            "p99 <= 10 ms",
            _p99(hung) * 1000,
            _p99(hung_theirs) * 1000,
            10,
        ),
    ]


def _stretch(daemon: Daemon, port: int, seconds: int, pids: dict[str, int]) -> dict[str, list[float]]:
    before, began = {name: _cpu(pid) for name, pid in pids.items()}, time.monotonic()
    found: dict[str, list[float]] = {"nvitop scrape": []}
    found["beyond"] = _scrapes(daemon, seconds, lambda: found["nvitop scrape"].append(_timed(port)))
    took = time.monotonic() - began
    return found | {name: [(_cpu(pid) - before[name]) / took] for name, pid in pids.items()}


def _scrapes(daemon: Daemon, count: int, also=lambda: None) -> list[float]:
    """Seconds that an answer of ours took longer than the engine's own one just before, once a second."""
    found = []
    for _ in range(count):
        at = time.monotonic()
        engine = _timed(daemon.engine_port)
        found.append(max(_timed(daemon.port) - engine, 0.0))
        also()
        time.sleep(max(1.0 - (time.monotonic() - at), 0.0))
    return found


def _timed(port: int) -> float:
    began = time.monotonic()
    assert http_get(port, "/metrics", timeout=30).status == 200
    return time.monotonic() - began


def _zero(daemon: Daemon) -> str:
    return "".join(line for line in daemon.get("/metrics").text.splitlines() if line.endswith((" 0", " 0.0")))


def _p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]


def _library(folder: Path) -> Path:
    """The stand-in of NVML's library, built; the folder that it lies in."""
    place = folder / "nvml"
    place.mkdir()
    source, made = HERE.with_name("nvml_stub.c"), place / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(made), str(source)], check=True)
    return place


@contextlib.contextmanager
def nvitop(folder: Path, library: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """nvitop-exporter in an environment of its own below build/, made once."""
    home, port = ROOT / "build" / "nvitop", free_port()
    if not (home / "bin" / "nvitop-exporter").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", NVITOP]
        subprocess.run(pip, check=True)
    command = [str(home / "bin" / "nvitop-exporter"), "--bind-address", "127.0.0.1", "--port", str(port)]
    log = folder / "nvitop.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*command, "--interval", "1"], env={**os.environ, **library}, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_until(lambda: b"gpu" in _text(port), 30, "nvitop-exporter answers", log)
        yield child, port
    finally:
        child.kill()
        child.wait()


def _text(port: int) -> bytes:
    with contextlib.suppress(OSError):
        return http_get(port, "/metrics", timeout=5).body
    return b""


def _helper(pid: int) -> int:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "adapters.nvml"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
