"""The installed product on a machine of its own: configure kimi, start it, look at it, end it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.machine import Machine
from process.fakes import write_model

FAKE = "/srv/fake/fake_vllm.py"
SCRIPT = "/etc/vllm-supervisor/fake.json"
ENGINE_PORT = 8000
METRICS_PORT = 9477

REAL_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
}


def toml(tables: dict[str, Any]) -> str:
    """Nested tables as TOML; JSON's scalars and lists are TOML's."""
    lines: list[str] = []

    def table(name: str, values: dict[str, Any]) -> None:
        lines.append(f"[{name}]")
        lines.extend(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict))
        for key, value in values.items():
            if isinstance(value, dict):
                table(f"{name}.{key}", value)

    for name, values in tables.items():
        table(name, values)
    return "\n".join(lines) + "\n"


@dataclass
class Service:
    """kimi.service on a machine, or vllm@NAME.service on ports of its own."""

    machine: Machine
    name: str = "kimi"
    engine_port: int = ENGINE_PORT
    metrics_port: int = METRICS_PORT

    @property
    def unit(self) -> str:
        """The unit's name without its ending."""
        return self.name if self.name == "kimi" else f"vllm@{self.name}"

    @property
    def state(self) -> str:
        """Where it keeps its history and incidents."""
        return f"/var/lib/vllm-supervisor/{self.name}"

    @property
    def config(self) -> str:
        """Its configuration file."""
        return f"/etc/vllm-supervisor/{self.name}.toml"

    def configure(self, engine: dict[str, Any], **tables: dict[str, Any]) -> None:
        """Write kimi.toml: the given engine and tables over defaults that suit a test."""
        base = {"served_model_name": "kimi", "port": self.engine_port, "device": "cpu", "overlay": "off"}
        tables.setdefault("metrics", {"listen": f"127.0.0.1:{self.metrics_port}"})
        self.machine.put(toml({"engine": {**base, **engine}, **tables}), self.config)

    def environment(self, text: str) -> None:
        """Write kimi.env, as closed to others as an installation leaves it: tests after this one count on that."""
        self.machine.put(text, f"/etc/vllm-supervisor/{self.name}.env", 0o640)

    def real(
        self,
        vllm: Path,
        model: Path,
        *,
        tensor_parallel: int = 2,
        args: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        device: str = "cpu",
        **tables: Any,
    ) -> None:
        """A real vLLM on the CPU."""
        arguments = {
            "max-model-len": 1024,
            "reasoning-parser": "deepseek_r1",
            "enforce-eager": True,
            "tensor-parallel-size": tensor_parallel,
            **(args or {}),
        }
        given = dict(REAL_ENV) if tensor_parallel == 2 else {k: v for k, v in REAL_ENV.items() if "OMP" not in k}
        engine = {"command": [str(vllm), "serve"], "model": str(model), "args": arguments, "device": device}
        self.configure({**engine, "env": {**given, **(env or {})}}, **tables)

    def fake(
        self, knobs: dict[str, Any], args: dict[str, Any] | None = None, device: str = "cpu", **tables: Any
    ) -> None:
        """The fake engine, described by its knobs."""
        self.machine.put(json.dumps(knobs), SCRIPT)
        write_model(self.machine.root / "srv/model")
        tables.setdefault("smoke", {"on_start": "off"})
        self.configure(
            {
                "command": ["/usr/bin/python3", FAKE, "serve"],
                "model": "/srv/model",
                "args": args or {},
                "env": {"FAKE_ENGINE": SCRIPT},
                "device": device,
            },
            **tables,
        )

    def override(self, text: str) -> None:
        """A drop-in for kimi.service."""
        self.machine.put(text, f"/run/systemd/system/{self.unit}.service.d/test.conf")
        self.machine.run("systemctl daemon-reload")

    def show(self, *names: str) -> dict[str, str]:
        """Properties of the unit."""
        done = self.machine.run(["systemctl", "show", self.unit, *(f"-p{name}" for name in names)])
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def start(self, timeout: float = 300.0, *, block: bool = True) -> subprocess.CompletedProcess[str]:
        """`systemctl start kimi`."""
        more = [] if block else ["--no-block"]
        return self.machine.run(["systemctl", "start", *more, self.unit], check=False, timeout=timeout)

    def stop(self, timeout: float = 120.0) -> None:
        """`systemctl stop kimi`."""
        self.machine.run(["systemctl", "stop", self.unit], timeout=timeout)

    def wait(self, what: str, probe: Callable[[], Any], timeout: float) -> Any:
        """What `probe` gives, once it gives something; fails with the journal's end after `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            value = probe()
            if value:
                return value
            if time.monotonic() >= until:
                raise AssertionError(f"not within {timeout:g} s: {what}\n{self.show('StatusText')}\n{self.journal()}")
            time.sleep(0.05)

    def wait_status(self, part: str, timeout: float = 60.0) -> str:
        """STATUS, once it contains `part`."""

        def probe() -> str:
            text = self.show("StatusText").get("StatusText", "")
            return text if part in text else ""

        return str(self.wait(f"STATUS with {part!r}", probe, timeout))

    def wait_state(self, *states: str, timeout: float = 60.0) -> dict[str, str]:
        """The unit's properties, once its ActiveState is one of `states`."""

        def probe() -> dict[str, str] | None:
            shown = self.show("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts", "StatusText")
            return shown if shown.get("ActiveState") in states else None

        return dict(self.wait(f"state {states}", probe, timeout))

    def get(self, path: str, port: int = 0) -> tuple[int, str]:
        """One GET inside the machine, of the supervisor's page or another port's: status (0: nobody answers), body."""
        port = port or self.metrics_port
        done = self.machine.run(
            ["curl", "-s", "-m", "20", "-w", "\n%{http_code}", f"http://127.0.0.1:{port}{path}"], check=False
        )
        body, _, status = done.stdout.rpartition("\n")
        return int(status or 0), body

    def chat(self, question: str, tokens: int = 64, timeout: float = 60.0) -> tuple[int, dict[str, Any]]:
        """One chat completion inside the machine."""
        body = {
            "model": "kimi",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        url = f"http://127.0.0.1:{self.engine_port}/v1/chat/completions"
        command = ["curl", "-s", "-m", str(timeout), "-w", "\n%{http_code}", "-H", "Content-Type: application/json"]
        done = self.machine.run([*command, "-d", json.dumps(body), url], check=False, timeout=timeout + 10)
        answer, _, status = done.stdout.rpartition("\n")
        return int(status or 0), json.loads(answer) if answer.strip() else {}

    def left_over(self) -> str:
        """Processes of the service's user and its cgroup; empty when nothing is left."""
        done = self.machine.run(
            "ps -u vllm -o pid=,args=; cat /sys/fs/cgroup/system.slice/kimi.service/cgroup.procs 2>/dev/null",
            check=False,
        )
        return done.stdout.strip()

    def journal(self, lines: int = 40) -> str:
        """The end of the unit's journal."""
        done = self.machine.run(
            ["journalctl", "-u", self.unit, "-o", "cat", "--no-pager", "-n", str(lines)], check=False
        )
        return done.stdout

    def reset(self) -> None:
        """Back to nothing: stopped, no state, no drop-in."""
        self.machine.run("systemctl stop kimi", check=False, timeout=120)
        self.machine.run(
            "systemctl reset-failed kimi; rm -rf /run/systemd/system/kimi.service.d /var/lib/vllm-supervisor/*; "
            "systemctl daemon-reload; journalctl --rotate -q; journalctl --vacuum-time=1s -q",
            check=False,
        )
