"""The main process: prints the load, becomes a server, ends."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from . import faults, lines, readiness, replay
from .api import Api
from .arguments import Arguments
from .control import LATER, Control, answer
from .loop import Loop
from .model import Engine
from .script import Script, change
from .server import Server
from .style import Line, Style
from .system import write
from .tree import Tree

BIND_FAILED = 'Traceback (most recent call last):\n  File "/opt/vllm/bin/vllm", line 8, in <module>\n    sys.exit(main())\n    sock.bind(addr)\nOSError: [Errno %d] %s'
EARLY = ("launching", "configuring")


class Main(Loop):
    """One start of the fake."""

    def __init__(self, script: Script, args: Arguments) -> None:
        workers = script.workers or args.number("tensor-parallel-size", 8 if script.load == "kimi" else 1)
        style = script.style or ("json" if "json" in args.text("logging-config.formatter") else "")
        super().__init__(script, Style(script.version, style, workers))
        self.args = args
        self.server: Server | None = None
        self.engine: Engine | None = None
        self.cut = False
        self.live = False
        self.allowed = set() if script.pace == "manual" else None
        self.phases: list[str] = []
        self.ended: list[str] = []
        self.waiting: list[tuple[str, socket.socket]] = []
        quiet = args.text("uvicorn-log-level") in {"warning", "error", "critical"}
        self.access = not quiet and not args.has("disable-uvicorn-access-log")
        self.hushed = {f'"GET {path} ' for path in args.text("disable-access-log-for-endpoints").split(",") if path}
        self.uvicorn = not quiet

    def run(self) -> None:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123
            file.write("vllm")
        if self.script.control:
            self.control = Control(self.script.control, self.command)
        self.faults("imports")
        planned = self.plan()
        self.phases = list(dict.fromkeys([*(line.phase for line in planned), "ready"]))
        phase = ""
        for line in planned:
            self.wait(line.gap)
            if line.phase != phase:
                self.end_phase(phase)
                self.enter(line.phase)
                phase = line.phase
                self.one(line)
                self.maybe_cut(phase)
                continue
            self.one(line)
            if line.shard >= 0:
                self.maybe_cut(line.shard)
        if self.script.fail_with:
            self.exit(self.script.exit_code)
        if not self.live and not self.script.replay:
            if phase != "ready":
                self.end_phase(phase)
                self.enter("ready")
            self.go_live()
        self.end_phase("ready")
        while True:
            self.wait_until(lambda: self.stop_wanted)
            self.stop(0)

    def plan(self) -> list[Line]:
        """All lines to come, with their pauses."""
        script = self.script
        if script.replay or script.fail_with:
            return replay.replayed(script.replay or script.fail_with, script.scale, self.style.workers)
        form = script.readiness_line_form or (
            "json" if self.style.json else "prefixed" if self.style.wrapped else "uvicorn"
        )
        farewell = readiness.server_lines(form, os.getpid(), self.style) if self.uvicorn else []
        if script.no_readiness_line:
            farewell = [line for line in farewell if not any(each in line.text for each in replay.READY)]
        made = (
            [] if script.load == "none" else lines.made(script, self.args, self.style, self.args.number("port", 8000))
        )
        if script.load == "kimi":
            made = lines.paced(made, sum(line.gap for line in made) * script.scale)
        else:
            made = lines.paced(made, 0.0 if script.pace == "manual" else float(script.pace))
        return made + farewell

    def enter(self, phase: str) -> None:
        """What comes with the first line of a phase."""
        if self.allowed is not None:
            self.wait_until(lambda: self.allowed is None or phase in self.allowed)
        if self.waker is None:
            self.wait(self.script.term_imports_s)
            self.take_signals()
            self.mode = "config"
        if phase not in EARLY:
            if self.server is None:
                self.bind()
            if self.tree is None:
                self.tree = Tree(self.script, self.style)
                self.mode = "loading"
        if phase in {"starting-server", "ready"} and self.interrupt_after_load:
            self.interrupted()
        self.phase = phase
        if self.script.exit_at == phase:
            self.exit_deadline = time.monotonic() + (self.script.exit_after or 0.0)
        if self.script.worker_dies_at == phase and self.tree:
            os.kill(self.tree.worker_pids[self.script.worker_dies_rank], 9)
            self.wait_until(self.tree.core_is_dead, 5)
            self.check()
        self.faults(phase)

    def one(self, line: Line) -> None:
        self.print(line, early=line.phase == "connecting")
        if line.server and not self.live and any(each in line.text for each in replay.READY):
            self.go_live()

    def end_phase(self, phase: str) -> None:
        if not phase:
            return
        if phase == "launching" and self.server is None:
            self.bind()
        self.ended.append(phase)
        for wanted, conn in list(self.waiting):
            if wanted in self.ended:
                self.waiting.remove((wanted, conn))
                answer(conn, {"phase": phase})

    def maybe_cut(self, point: str | int) -> None:
        if self.script.cut_at == point:
            self.cut = True
            if self.tree and self.script.silent_work:
                self.tree.work(self.script.silent_work)
            self.wait_until(lambda: not self.cut)
            if self.tree and self.script.silent_work:
                self.tree.work("")

    def faults(self, phase: str) -> None:
        for fault in self.script.faults:
            if fault.get("at") == phase:
                for piece in faults.output(fault):
                    self.show(fault.get("who", "api"), int(fault.get("stream", 1)), piece)

    def bind(self) -> None:
        try:
            self.server = Server(self.args, self.script.listen_elsewhere)
        except OSError as error:
            self.print(Line(self.phase, "api", BIND_FAILED % (error.errno, error.strerror)))
            self.exit(1)

    def go_live(self) -> None:
        """From the readiness line to the first answer."""
        self.live = True
        assert self.tree
        assert self.server
        if self.script.die_between_line_and_answer:
            self.exit(self.script.exit_code)
        self.engine = Engine(self.script, self.tree.step)
        self.wait(self.script.listen_delay_s)
        api = Api(self.script, self.args, self.engine, self.server, self.style.minor)
        if not (self.script.never_listen or self.script.readiness_without_http):
            self.server.listen(api, self.log, self.script.keep_alive_s)
        self.mode = "ready"
        if self.script.exit_zero_unasked:
            self.exit_deadline = time.monotonic() + (self.script.exit_after or 0.0)
        elif self.script.exit_after is not None and not self.script.exit_at:
            self.exit_deadline = time.monotonic() + self.script.exit_after

    def log(self, text: str) -> None:
        if self.access and not any(each in text for each in self.hushed):
            write(1, self.style.render(Line("", "api", text), os.getpid()))

    def engine_died(self) -> None:
        assert self.engine
        self.engine.die()
        text = "AsyncLLM output_handler failed.\nTraceback (most recent call last):\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
        self.print(Line("", "api", text, "async_llm.py:906", "ERROR"))

    def exit(self, code: int) -> None:
        if self.script.exit_zero_unasked and self.mode == "ready":
            self.stop(0)
        super().exit(code)

    def stop(self, code: int) -> None:
        """Drains for --shutdown-timeout, ends the engine, then the server."""
        assert self.engine
        assert self.server
        self.mode = "stopping"
        timeout = self.args.number("shutdown-timeout", 0)
        mode = "drain" if timeout else "abort"
        self.print(Line("", "api", "[shutdown] API server: shutdown triggered", "launcher.py:252"))
        self.print(
            Line(
                "",
                "api",
                f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout}s",
                "launcher.py:258",
            )
        )
        self.engine.closed = True
        if timeout:
            self.wait_until(lambda: not self.engine or not self.engine.in_flight(), timeout)
        self.engine.abort_all()
        self.wait_until(lambda: not self.server or not self.server.open, 0.3)
        forced = self.tree.end(0.3) if self.tree else False
        if forced:
            self.print(
                Line(
                    "",
                    "api",
                    "[shutdown] Process manager: force killing remaining process EngineCore",
                    "utils.py:590",
                    "WARNING",
                )
            )
        if self.uvicorn:
            for text in (
                "Shutting down",
                "Waiting for application shutdown.",
                "Application shutdown complete.",
                f"Finished server process [{os.getpid()}]",
            ):
                self.print(Line("", "api", f"INFO:     {text}", server=True))
        self.server.close()
        super().exit(code)

    def command(self, asked: dict[str, Any], conn: socket.socket) -> Any:
        """Carries out one command of the control socket; see control.py."""
        from .commands import act

        return LATER if (result := act(self, asked, conn)) is None else result

    def change(self, values: dict[str, Any]) -> None:
        change(self.script, values)
        if self.engine:
            self.engine.wake()
