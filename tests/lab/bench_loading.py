"""What reading ahead gains: a real engine and a checkpoint of some gigabytes, with a cold and a warm page cache.

Alone: `bench_loading.py [--gib 3] [--rounds 3] [--cache warm]`. The engine is the CPU build, which imports as long as a
real one. Equal starts differ by a third and more, and the first on a machine are the slowest: one is made that does not count,
and what the helper itself took stands beside the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "supervisor")]

from lab import paths  # noqa: E402 - only importable from here on
from lab.bench_checkpoint import SHARDS, checkpoint  # noqa: E402
from lab.bench_parts import REAL_ARGS, REAL_ENV, Row  # noqa: E402
from process.harness import Daemon, write_config  # noqa: E402

START_S = 300.0
HELPER = "vllm_supervisor.adapters.readahead"
UNTIL_LOADED = ("launching", "configuring", "connecting", "loading-weights")


ROUNDS = {"cold": 3, "warm": 5}
"""Starts of each kind, by the page cache: with a warm one there is nothing to see but noise, and more of it is wanted."""


class Start(NamedTuple):
    """Seconds of one start, and what was read ahead of it."""

    weights: float
    until_loaded: float
    ready: float
    hit: float | None
    disk: float | None
    helper: float


def readahead_rows(gib: float = 3.0, rounds: Mapping[str, int] = ROUNDS) -> list[Row]:
    """Starts with and without reading ahead in turn; all of them in one run, on a checkpoint made for it.

    Args:
        gib: Its size.
        rounds: Starts of each kind, by the state of the page cache: `cold`, `warm`.
    """
    # Not below /tmp, which may lie in memory.
    folder = Path(tempfile.mkdtemp(prefix="vsup-bench.", dir="/var/tmp"))
    try:
        size = checkpoint(folder / "model", gib)
        found: dict[tuple[str, str], list[Start]] = {}
        run(folder / "model", "off")
        for cache, count in rounds.items():
            for number in range(count):
                for setting in ("off", "auto") if number % 2 == 0 else ("auto", "off"):
                    (drop if cache == "cold" else warm)(folder / "model")
                    start = run(folder / "model", setting)
                    print(f"# {cache}, load.readahead = {setting}: {start}", file=sys.stderr, flush=True)
                    found.setdefault((cache, setting), []).append(start)
    finally:
        shutil.rmtree(folder)
    return [row for cache, count in rounds.items() for row in _rows(cache, found, size, count)]


def _rows(cache: str, found: dict[tuple[str, str], list[Start]], size: int, rounds: int) -> list[Row]:
    plain, ahead = found[cache, "off"], found[cache, "auto"]
    text = f"{size / 1e9:.1f} GB in {SHARDS} shards, {cache} page cache, {rounds} starts each, median (least to most)"
    rows = []
    for what, field in (
        ("weights phase", "weights"),
        ("launch to weights loaded", "until_loaded"),
        ("start to READY", "ready"),
    ):
        taken, others = ([getattr(start, field) for start in starts] for starts in (ahead, plain))
        ours, bare = median(taken), median(others)
        measured = f"{ours:.2f} s ({min(taken):.2f} to {max(taken):.2f}), ratio {ours / bare:.2f}"
        if field == "weights":
            disks = [start.disk for start in ahead if start.disk]
            hit = median(start.hit or 0.0 for start in ahead)
            measured += f"; {hit:.0%} found in memory" + (f", disk {median(disks) / 1e9:.2f} GB/s" if disks else "")
        wanted = "ratio < 1" if cache == "cold" else "ratio about 1"
        beside = f'load.readahead = "off": {bare:.2f} s ({min(others):.2f} to {max(others):.2f})'
        rows.append(Row(f"{what}, {text}", measured, beside, wanted))
    cpu = median(start.helper for start in ahead)
    rows.append(Row(f"CPU time of the helper that reads ahead, the same starts, {cache}", f"{cpu:.2f} s", "-", "-"))
    return rows


def run(model: Path, setting: str) -> Start:
    """One start of the real engine under the supervisor."""
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        engine = {"command": [str(paths.vllm()), "serve"], "model": str(model), "args": REAL_ARGS, "env": REAL_ENV}
        tables = {"smoke": {"on_start": "off"}, "load": {"readahead": setting}}
        config = write_config(Path(name), {}, engine=engine, **tables)
        with Daemon(config, Path(name)) as daemon:
            assert daemon.notify
            with _helper_cpu(daemon) as cpu:
                daemon.notify.wait_for("READY", START_S)
            status = daemon.status()
            daemon.sigterm()
            daemon.wait_exit(60)
    phases = status["phases"]
    read = status["readahead"]
    return Start(
        phases.get("loading-weights", 0.0),
        sum(phases.get(name, 0.0) for name in UNTIL_LOADED),
        sum(seconds for phase, seconds in phases.items() if phase not in {"ready", "waiting"}),
        read["hit_ratio"],
        read["disk_rate"],
        max(cpu, default=0.0),
    )


@contextlib.contextmanager
def _helper_cpu(daemon: Daemon) -> Iterator[list[float]]:
    """Seconds of CPU that the helper has used, each time that it was looked at."""
    found: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(daemon.pid).children():
                    if HELPER in child.cmdline():
                        used = child.cpu_times()
                        found.append(used.user + used.system)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def drop(model: Path) -> None:
    """The checkpoint out of the page cache, and nothing else."""
    for file in sorted(model.glob("*.safetensors")):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(model: Path) -> None:
    """All of it into the page cache."""
    for file in sorted(model.glob("*.safetensors")):
        with file.open("rb", buffering=0) as data:
            while data.read(16 << 20):
                continue


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=3.0, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, help="starts of each kind, if not as many as the benchmark has")
    parser.add_argument("--cache", choices=tuple(ROUNDS), help="that page cache alone")
    parser.add_argument("--model-only", type=Path, help="make the checkpoint there, and nothing else")
    args = parser.parse_args()
    if args.model_only:
        print(checkpoint(args.model_only, args.gib))
        return 0
    rounds = {cache: args.rounds or count for cache, count in ROUNDS.items() if args.cache in (None, cache)}
    for row in readahead_rows(args.gib, rounds):
        print(" | ".join(row.words), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
