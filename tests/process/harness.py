"""The daemon under test: its configuration, its notify socket, its life and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from process.fakes import FAKE, Control, Fake, gone, kill, kill_marked, write_environment, write_model, write_script
from process.notify_socket import NotifySocket
from process.waiting import Reply, free_port, http_get, refused, tail, wait_until

__all__ = [
    "FAKE",
    "Control",
    "Daemon",
    "Fake",
    "NotifySocket",
    "Reply",
    "free_port",
    "gone",
    "http_get",
    "refused",
    "tail",
    "wait_until",
    "write_config",
    "write_environment",
]

SOURCE = Path(__file__).resolve().parents[2] / "supervisor"


def write_config(tmp_path: Path, fake: dict[str, Any] | None = None, **overrides: Any) -> Path:
    """A configuration whose engine is the fake that `fake` describes; the path of the TOML file.

    Args:
        tmp_path: Where everything lies: fake.toml, fake.json, control, model/.
        fake: Knobs, see tests/fake/fake_engine/script.py.
        overrides: Tables to lay over, by section: `engine={"port": 1}`, `stall={"launching": 1}`; the keys
            `args` and `env` of engine are merged. A section None is left out.
    """
    script = write_script(tmp_path, fake or {})
    engine: dict[str, Any] = {
        "command": [sys.executable, str(FAKE), "serve"],
        "model": str(write_model(tmp_path / "model")),
        "served_model_name": "kimi",
        "host": "127.0.0.1",
        "port": free_port(),
        "device": "cpu",
        "overlay": "off",
        "args": {},
        "env": {"FAKE_ENGINE": str(script)},
    }
    tables: dict[str, Any] = {"engine": engine, "metrics": {"listen": f"127.0.0.1:{free_port()}"}}
    for section, values in overrides.items():
        if values is None:
            tables.pop(section, None)
            continue
        table = tables.setdefault(section, {})
        for key, value in values.items():
            table[key] = (
                {**table[key], **value} if isinstance(value, dict) and isinstance(table.get(key), dict) else value
            )
    path = tmp_path / "fake.toml"
    path.write_text("".join(_table(name, values) for name, values in tables.items()))
    tomllib.loads(path.read_text())
    return path


def _table(name: str, values: dict[str, Any]) -> str:
    """One TOML table with its sub-tables and lists of tables; JSON's scalars and lists are TOML's."""
    lists = {
        key: value for key, value in values.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    plain = {key: value for key, value in values.items() if not isinstance(value, dict) and key not in lists}
    nested = {key: value for key, value in values.items() if isinstance(value, dict)}
    text = f"[{name}]\n" + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in plain.items())
    for key, tables in lists.items():
        text += "".join(_table(f"[{name}.{key}]", table) for table in tables)
    return text + "".join(_table(f"{name}.{key}", value) for key, value in nested.items())


class Daemon:
    """`vllm-supervisor run`, with its state below `tmp_path`; a context manager that leaves no process behind."""

    def __init__(
        self,
        config: Path,
        tmp_path: Path,
        *,
        args: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        notify: bool = True,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.tmp_path, self.config = tmp_path, config
        self.settings = tomllib.loads(config.read_text())
        self.port = int(self.settings["metrics"]["listen"].rpartition(":")[2])
        self.engine_port = int(self.settings["engine"]["port"])
        self.out, self.err = tmp_path / "daemon.out", tmp_path / "daemon.err"
        self.control = Control(tmp_path / "control", self.out, self.err)
        self.state, self.runtime = tmp_path / "state", tmp_path / "run"
        self.notify = NotifySocket(tmp_path / "notify", self.out, self.err) if notify else None
        self.mark = f"FAKE_ENGINE={tmp_path / 'fake.json'}"
        self.args, self.extra, self.prefix = args, env or {}, prefix
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        for folder in (self.state, self.runtime):
            folder.mkdir(exist_ok=True)
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_", "FAKE_"))
        }
        environment = {
            **inherited,
            "PYTHONPATH": str(SOURCE),
            "STATE_DIRECTORY": str(self.state),
            "RUNTIME_DIRECTORY": str(self.runtime),
            "FAKE_ENGINE": str(self.tmp_path / "fake.json"),
            **({"NOTIFY_SOCKET": str(self.notify.path)} if self.notify else {}),
            **self.extra,
        }
        program = [*self.prefix, sys.executable, "-m", "vllm_supervisor"]
        command = [*program, "run", "--config", str(self.config), *self.args]
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                command,
                cwd=self.tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.control.close()
        if self.process:
            ours = self.descendants()
            if self.process.poll() is None:
                self.process.kill()
            # By their mark first: it looks at what they map, to remove their segments.
            while kill_marked(self.mark):
                continue
            for pid in ours:
                kill(pid)
            self.process.wait(10)
        if self.notify:
            self.notify.close()

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def descendants(self) -> list[int]:
        try:
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def log(self) -> str:
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def get(self, path: str, **more: Any) -> Reply:
        return http_get(self.port, path, **more)

    def status(self) -> dict[str, Any]:
        """GET /status; {} while nobody answers."""
        try:
            reply = self.get("/status", timeout=2)
        except OSError:
            return {}
        return dict(reply.json())

    def wait(self, fn: Callable[[], Any], what: str, timeout: float = 60.0) -> Any:
        def alive_or_done() -> Any:
            value = fn()
            if not value and self.process and self.process.poll() is not None:
                raise AssertionError(
                    f"the daemon exited with {self.process.returncode} before: {what}\n{tail(self.out, self.err)}"
                )
            return value

        return wait_until(alive_or_done, timeout, what, self.out, self.err)

    def wait_phase(self, *phases: str, timeout: float = 60.0) -> dict[str, Any]:
        """The status, once its phase is one of `phases`; fails when the daemon exits before."""

        def reached() -> dict[str, Any] | None:
            status = self.status()
            return status if status.get("phase") in phases else None

        return dict(self.wait(reached, f"phase {' or '.join(phases)}", timeout))

    def wait_exit(self, timeout: float = 60.0) -> int:
        assert self.process
        process = self.process
        wait_until(lambda: process.poll() is not None, timeout, "exit of the daemon", self.out, self.err)
        return int(process.returncode)

    def sigterm(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
