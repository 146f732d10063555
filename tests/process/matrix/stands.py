"""Bringing a daemon into a phase, holding it there, and letting it go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from process.harness import write_environment
from process.matrix.scene import Scene
from process.waiting import http_get, wait_until
from vllm_supervisor.adapters.engine_info import cache_file

CUT = (
    "launching",
    "configuring",
    "connecting",
    "loading-weights",
    "compiling",
    "sizing-kv-cache",
    "capturing-graphs",
    "starting-server",
)
WAIT_S = 2.0
REQUEST = {"model": "kimi", "prompt": "count", "max_tokens": 60, "ignore_eos": True}


@dataclass(frozen=True)
class Stand:
    """One phase.

    Attributes:
        fake: Knobs of the engine that hold it there.
        tables: Settings of the supervisor that hold it there.
        arrive: Brings a daemon that was just started, or not yet, into the phase.
        go_on: Lets the phase end.
    """

    arrive: Callable[[Scene], None]
    go_on: Callable[[Scene], None] = lambda _: None
    fake: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)


def _hold_check(scene: Scene) -> None:
    # A disk that does not answer for as long as the test wants: the check reads the engine's options there.
    command = [str(write_environment(scene.folder / "env")), "serve"]
    scene.hold = cache_file(Path(), command, "0.32.0").name
    scene.tables["engine"]["command"] = command
    scene.again()
    scene.wait_phase("preflight")
    scene.hold = ""


def _release_check(scene: Scene) -> None:
    (pipe,) = scene.inside("").glob("engine-flags-*")

    def answer() -> bool:
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False  # it is not read yet
        return True

    wait_until(answer, 10, "the check reads the engine's options", scene.err)
    pipe.unlink()


def _wait_in_a_row(scene: Scene) -> None:
    scene.again(exit_at="configuring")
    scene.wait_exit(15)
    scene.again()
    scene.wait_phase("waiting")


def seen_as(phase: str) -> tuple[str, ...]:
    """The phases that the daemon may see there: bars come by another pipe than lines, and the engine is fast."""
    bars = ("loading-weights", "compiling", "sizing-kv-cache", "capturing-graphs", "starting-server")
    return bars[: bars.index(phase) + 1] if phase in bars else (phase,)


def _cut(phase: str) -> Stand:
    def arrive(scene: Scene) -> None:
        scene.start()
        scene.wait_phase(*seen_as(phase), timeout=30)
        scene.wait(lambda: scene.control("stats")["cut"], "standstill")
        scene.look()

    return Stand(arrive, lambda scene: scene.control("resume") and None, {"cut_at": phase})


def _verify(scene: Scene) -> None:
    scene.start()
    scene.wait_phase("verifying", timeout=30)
    scene.wait(lambda: scene.control("stats")["mode"] == "ready", "the engine serves")
    scene.look()


def _be_ready(scene: Scene) -> None:
    scene.start()
    scene.wait_phase("ready", timeout=30)
    scene.look()


def _drain(scene: Scene) -> None:
    _be_ready(scene)

    def ask() -> None:
        try:
            http_get(scene.engine_port, "/v1/completions", post=REQUEST, timeout=30)
        except (OSError, ValueError):
            return  # the engine may be killed under it

    threading.Thread(target=ask, daemon=True).start()
    scene.wait(lambda: scene.control("stats")["in_flight"] == 1, "a running request")
    scene.sigterm()
    scene.wait_phase("draining")


def _stop(scene: Scene) -> None:
    _be_ready(scene)
    scene.sigterm()
    scene.wait_phase("stopping")


STANDS: dict[str, Stand] = {
    "preflight": Stand(_hold_check, _release_check),
    "waiting": Stand(_wait_in_a_row, tables={"retry": {"first_wait_s": WAIT_S}}),
    **{phase: _cut(phase) for phase in CUT},
    "verifying": Stand(
        _verify, lambda scene: scene.control("set", values={"generate_status": 200}) and None, {"generate_status": 500}
    ),
    "ready": Stand(_be_ready),
    "draining": Stand(_drain, fake={"token_delay": 0.05}, tables={"stop": {"drain_s": 8.0, "kill_after_s": 1.0}}),
    "stopping": Stand(
        _stop,
        fake={"ignore_sigterm": True, "children_ignore_sigterm": True},
        tables={"stop": {"drain_s": 0.0, "kill_after_s": 3.0}},
    ),
}
