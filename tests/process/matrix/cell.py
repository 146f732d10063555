"""One cell of the matrix: bring a daemon into the phase, strike, and hold what comes of it to the table."""

from __future__ import annotations

import copy
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process.fakes import Fake
from process.matrix.faults import FAULTS
from process.matrix.scene import Scene
from process.matrix.stands import STANDS
from process.matrix.table import Cell
from process.waiting import http_get, wait_until

LONGEST = 4000
"""Characters of a problem: a log may hold a line of 100 MB."""

BASE: dict[str, Any] = {
    "engine": {"args": {"tensor-parallel-size": 2}},
    "smoke": {"on_start": "off"},
    "retry": {"first_wait_s": 0.2},
    "stop": {"kill_after_s": 8.0},
}


class Neighbour:
    """Another engine of the same user, model and flags, which nobody here may touch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.fake = Fake(folder, "--tensor-parallel-size", "2", pace=0)
        self.stats = self.fake.wait_ready(20)

    def check(self) -> None:
        """Every process and segment of it is there, and it answers."""
        pids = [self.stats["pid"], self.stats["core"], *self.stats["workers"]]
        dead = [pid for pid in pids if not Path(f"/proc/{pid}").exists()]
        assert not dead, f"a stranger's processes were ended: {dead}"
        lost = [segment for segment in self.stats["segments"] if not Path(segment).exists()]
        assert not lost, f"a stranger's segments were removed: {lost}"
        assert _answers(self.fake.port), "a stranger's engine does not answer any more"

    def close(self) -> None:
        self.fake.__exit__()


@dataclass(frozen=True)
class Measured:
    """What came of a cell: how long it took from the fault to the stated end, or why it is wrong."""

    cell: Cell
    seconds: float
    problem: str = ""


def _answers(port: int) -> bool:
    body = {"model": "kimi", "prompt": "Hello", "max_tokens": 1}
    return http_get(port, "/v1/completions", post=body, timeout=10).status == 200


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, two levels deep."""
    result: dict[str, Any] = {}
    for table in tables:
        for name, values in copy.deepcopy(table).items():
            result[name] = {**result.get(name, {}), **values}
    return result


def run(cell: Cell, folder: Path, neighbour: Neighbour) -> Measured:
    """Run one cell; what goes wrong is in the result."""
    began = time.monotonic()
    try:
        seconds = _run(cell, folder)
        neighbour.check()
    except (AssertionError, OSError, KeyError, TimeoutError, subprocess.TimeoutExpired) as error:
        return Measured(cell, time.monotonic() - began, f"{type(error).__name__}: {str(error)[:LONGEST]}")
    shutil.rmtree(folder, ignore_errors=True)
    return Measured(cell, seconds)


def _run(cell: Cell, folder: Path) -> float:
    fault, stand, outcome = FAULTS[cell.fault], STANDS[cell.phase], cell.outcome
    knobs = {"pace": 0, **stand.fake, **fault.fake(cell.phase)}
    tables = merged(BASE, stand.tables, fault.tables(cell.phase))
    with Scene(folder, knobs, tables, **fault.scene) as scene:
        undo = None
        try:
            began = time.monotonic()
            if fault.early and cell.phase == "preflight":
                fault.strike(scene)
                scene.start()
            else:
                stand.arrive(scene)
                began = time.monotonic()
                undo = fault.strike(scene)
                if outcome.end == "failed" and cell.phase == "preflight":
                    stand.go_on(scene)
            _come_to_the_end(cell, scene)
            seconds = time.monotonic() - began
        finally:
            if undo is not None:
                undo()
        assert seconds <= outcome.within_s, (
            f"took {seconds:.1f} s, {outcome.within_s:.0f} s are allowed\n{scene.log()[-3000:]}"
        )
        _looks_right(cell, scene)
        scene.nothing_left()
    return seconds


def _come_to_the_end(cell: Cell, scene: Scene) -> None:
    stand, outcome = STANDS[cell.phase], cell.outcome
    within = outcome.within_s + 10.0
    match outcome.end:
        case "failed" | "stopped":
            assert scene.wait_exit(within) == outcome.code, scene.log()[-3000:]
        case "goes-on":
            if not (FAULTS[cell.fault].early and cell.phase == "preflight"):
                stand.go_on(scene)
            _ready_and_stopped(scene)
        case "again":
            assert scene.wait_exit(5) == -9
            scene.sweep()
            _start_anew(cell, scene)
        case "restarted":
            assert scene.wait_exit(within) == 0, scene.log()[-3000:]
            scene.nothing_left()
            _start_anew(cell, scene)


def _start_anew(cell: Cell, scene: Scene) -> None:
    stand = STANDS[cell.phase]
    if cell.phase == "preflight":
        # The disk answers again; whoever waited for it is gone.
        for pipe in scene.inside("").glob("engine-flags-*"):
            pipe.unlink()
    scene.again(without=tuple(stand.fake))
    _ready_and_stopped(scene)


def _ready_and_stopped(scene: Scene) -> None:
    scene.wait_phase("ready", timeout=40)
    assert scene.get("/readyz").status == 200
    assert _answers(scene.engine_port)
    scene.look()
    scene.sigterm()
    assert scene.wait_exit(20) == 0, scene.log()[-3000:]


def _looks_right(cell: Cell, scene: Scene) -> None:
    assert "Traceback" not in "".join(line for line in scene.log().splitlines() if "vllm-supervisor:" in line)
    last = ("Failed: ", "Stopped")
    wait_until(lambda: scene.last_status().startswith(last), 5, "the last word of the daemon", scene.err)
    status = scene.last_status()
    if cell.outcome.reasons:
        named = status.removeprefix("Failed: ").partition(":")[0].partition(" ")[0].rstrip(".")
        assert named in cell.outcome.reasons, status
    elif cell.outcome.end != "failed":
        assert status.startswith("Stopped"), status
    assert scene.notify
    if cell.phase not in {"ready", "draining", "stopping"} and cell.outcome.end in {"failed", "stopped"}:
        assert not scene.notify.having("READY")
