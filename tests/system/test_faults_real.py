"""A row of faults on a real vLLM with two workers under real systemd, and a stranger's engine that nobody may touch.

Every start carries a fault into a later phase; systemd begins the next one. What cannot be made here is tried on the
scripted engine only: a compiler and captured graphs, full caches, a step of the clock, an NVML.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from system.service import REAL_ENV, Service
from system.striking import STATE, Strikes

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
LOADING = ("loading-weights", "compiling", "sizing-kv-cache")
SERVER = ("starting-server", "verifying")
DIED = ("engine-died", "worker-killed")
STRANGER_PORT = 8001
RESULTS = Path(__file__).parents[2] / "build" / "faults-real.json"


class Stranger:
    """Another vLLM: the same machine, user, model and flags; another unit and port."""

    def __init__(self, service: Service, vllm: Path, model: Path) -> None:
        self.machine = service.machine
        flags = "--max-model-len 1024 --reasoning-parser deepseek_r1 --enforce-eager --tensor-parallel-size 2"
        env = {**REAL_ENV, "HOME": "/srv/stranger", "VLLM_CACHE_ROOT": "/srv/stranger"}
        self.machine.run("install -d -o vllm -g vllm /srv/stranger")
        given = [f"--setenv={name}={value}" for name, value in env.items()]
        command = f"{vllm} serve {model} --served-model-name kimi --host 127.0.0.1 --port {STRANGER_PORT} {flags}"
        self.machine.run(["systemd-run", "--quiet", "--unit=stranger", "--uid=vllm", *given, *command.split()])
        self.service = service
        self.processes: list[str] = []
        self.segments: list[str] = []

    def _look(self) -> tuple[list[str], list[str]]:
        procs = self.machine.run("cat /sys/fs/cgroup/system.slice/stranger.service/cgroup.procs").stdout.split()
        return sorted(procs), sorted(self.machine.run("ls /dev/shm").stdout.split())

    def wait_ready(self, timeout: float) -> None:
        self.service.wait("the stranger serves", lambda: self.service.get("/health", STRANGER_PORT)[0] == 200, timeout)
        assert self.answers()
        self.processes, self.segments = self._look()
        assert len(self.processes) >= 4
        assert self.segments

    def answers(self) -> bool:
        body = json.dumps({"model": "kimi", "prompt": "Hello", "max_tokens": 1})
        url = f"http://127.0.0.1:{STRANGER_PORT}/v1/completions"
        command = ["curl", "-s", "-m", "100", "-H", "Content-Type: application/json", "-d", body, url]
        return '"completion_tokens":1' in self.machine.run(command, check=False, timeout=120).stdout

    def check(self) -> None:
        """Nobody touched it."""
        assert self._look() == (self.processes, self.segments)


def _configure(service: Service, engine: Path, tiny_model: Path) -> None:
    service.real(
        engine,
        tiny_model,
        liveness={"hang_after_s": 10.0, "canary_every_s": 5.0},
        retry={"first_wait_s": 3.0, "max_wait_s": 3.0, "max_attempts": 50},
        stop={"drain_s": 20.0, "kill_after_s": 8.0},
        smoke={"on_start": "off"},
    )


def _early(service: Service, strikes: Strikes) -> None:
    """What strikes before there is more of the engine than its API server."""
    # A stop in the check, before anything runs.
    service.start(block=False)
    status = strikes.reach("preflight", "launching", timeout=60)
    at = time.monotonic()
    service.stop()
    assert service.wait_state("inactive")["Result"] == "success"
    strikes.rows.append(("stop", status["phase"], "0", time.monotonic() - at))

    service.start(block=False)
    strikes.fatal("api-server-killed", ("launching",), "api-server", "KILL", "engine-died")
    _second(service, strikes, "waiting")
    strikes.fatal("api-server-segfault", ("configuring",), "api-server", "SEGV", "engine-died")
    _restarted(service, strikes, "configuring")


def test_a_row_of_faults(service: Service, engine: Path, tiny_model: Path) -> None:
    machine, strikes = service.machine, Strikes(service)
    machine.run(
        f"mkdir -p {STATE} && mount -t tmpfs -o size=24m,uid=$(id -u vllm),gid=$(id -g vllm),mode=750 tmpfs {STATE}"
    )
    try:
        _row(service, strikes, Stranger(service, engine, tiny_model), engine, tiny_model)
    finally:
        machine.run(f"systemctl stop kimi stranger; umount -l {STATE}; rm -rf /srv/stranger", check=False, timeout=120)
        RESULTS.parent.mkdir(exist_ok=True)
        rows = [{"fault": a, "phase": b, "end": c, "seconds": round(d, 1)} for a, b, c, d in strikes.rows]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def _row(service: Service, strikes: Strikes, stranger: Stranger, engine: Path, tiny_model: Path) -> None:
    machine = service.machine
    _configure(service, engine, tiny_model)
    _early(service, strikes)
    stranger.wait_ready(900)
    # Killed without a word: systemd sweeps the unit.
    strikes.fatal("supervisor-killed", ("connecting",), "supervisor", "KILL")
    stranger.check()
    strikes.fatal("engine-core-segfault", ("connecting",), "engine-core", "SEGV", *DIED)
    strikes.fatal("all-workers-segfault", LOADING, "all-workers", "SEGV", *DIED)
    strikes.fatal("worker-killed", LOADING, "worker", "KILL", "worker-killed")
    stranger.check()
    strikes.fatal("engine-core-killed", SERVER, "engine-core", "KILL", "engine-died")
    stranger.check()
    _harmless(service, strikes)
    stranger.check()
    assert stranger.answers()

    _struck_in_the_drain(service, strikes)
    stranger.check()
    service.start(block=False)
    _last_stop(service, strikes)
    stranger.check()
    assert machine.run(["vllm-supervisor", "check", "kimi"], check=False, timeout=60).returncode in {0, 75, 78}
    stranger.check()
    assert stranger.answers()


def _restarted(service: Service, strikes: Strikes, *phases: str) -> None:
    """`systemctl restart` in the middle of a start: what was begun is gone, and the next start goes its way."""
    status = strikes.reach(*phases, timeout=120)
    at = time.monotonic()
    service.machine.run(["systemctl", "restart", "--no-block", "kimi"])

    def begun() -> bool:
        pid = strikes.status().get("engine", {}).get("pid")
        return bool(pid) and pid != status["engine"]["pid"]

    service.wait("the next start has an engine", begun, 120)
    strikes.gone(status)
    strikes.rows.append(("restart", status["phase"], "started again", time.monotonic() - at))


def _second(service: Service, strikes: Strikes, *phases: str) -> None:
    """Another supervisor for the same instance is refused, and the first one goes on."""
    status = strikes.reach(*phases, timeout=60)
    env = "STATE_DIRECTORY=/var/lib/vllm-supervisor/kimi RUNTIME_DIRECTORY=/run/vllm-supervisor/kimi"
    command = f"env {env} vllm-supervisor run --config /etc/vllm-supervisor/kimi.toml"
    at = time.monotonic()
    done = service.machine.run(["/bin/sh", "-c", command], user="vllm", check=False, timeout=60)
    assert done.returncode == 75, done.stderr
    assert "already supervised by" in done.stderr
    strikes.rows.append(("second-supervisor", status["phase"], "goes on", time.monotonic() - at))


def _harmless(service: Service, strikes: Strikes) -> None:
    """What a ready engine and its supervisor must bear."""
    machine = service.machine
    service.wait_state("active", timeout=900)
    status = strikes.status()
    pid = status["engine"]["pid"]
    _second(service, strikes, "ready")
    faults = {
        "flood": lambda: strikes.output(status, "yes 'flood flood flood flood flood flood flood' | head -n 1000000"),
        "giant-line": lambda: strikes.output(status, "head -c 100000000 /dev/zero | tr '\\0' x; echo"),
        "journal-blocked": lambda: machine.run(
            "systemctl kill -s STOP systemd-journald && sleep 5; systemctl kill -s CONT systemd-journald", timeout=60
        ),
        "supervisor-stopped": lambda: machine.run(
            "systemctl kill -s STOP kimi --kill-whom=main; sleep 15; systemctl kill -s CONT kimi --kill-whom=main"
        ),
        "state-disk-full": lambda: machine.run(f"cat /dev/zero > {STATE}/filler; systemctl reload kimi", timeout=60),
        "port-stolen": lambda: machine.run("! timeout 5 /usr/bin/python3 -m http.server 8000 --bind 127.0.0.1"),
    }
    for name, strike in faults.items():
        at = time.monotonic()
        strike()
        service.wait(f"{name} is over", lambda: strikes.status().get("ready"), 60)
        assert service.chat("What is the capital of France?", tokens=4)[0] == 200
        strikes.rows.append((name, "ready", "goes on", time.monotonic() - at))
    assert strikes.status()["engine"]["pid"] == pid
    assert "engine-hung" not in service.journal(200)


def _struck_in_the_drain(service: Service, strikes: Strikes) -> None:
    """A worker stands still under a request that a stop waits for: the stop ends in its time all the same."""
    machine, status = service.machine, strikes.status()
    body = json.dumps({"model": "kimi", "prompt": "count", "max_tokens": 900, "ignore_eos": True, "n": 8})
    machine.put(body, "/srv/request.json")
    url = "http://127.0.0.1:8000/v1/completions"
    machine.run(
        f"systemd-run --quiet --collect curl -s -m 120 -H 'Content-Type: application/json' -d @/srv/request.json {url}"
    )
    service.wait("the request runs", lambda: strikes.status()["requests"].get("running"), 60)
    machine.run(["systemctl", "stop", "--no-block", "kimi"])
    strikes.reach("draining", timeout=20)
    at = strikes.signal(status, "all-workers", "STOP")
    ended = service.wait_state("inactive", "failed", timeout=90)
    assert (ended["ActiveState"], ended["Result"]) == ("inactive", "success"), service.journal()
    strikes.gone(status)
    strikes.rows.append(("all-workers-stopped", "draining", "0", time.monotonic() - at))


def _last_stop(service: Service, strikes: Strikes) -> None:
    """A stop of an engine that does not hear SIGTERM; while it is being ended a worker is killed, too."""
    status = strikes.reach("configuring", "connecting", timeout=600)
    strikes.signal(status, "api-server", "STOP")
    at = time.monotonic()
    service.machine.run(["systemctl", "stop", "--no-block", "kimi"])
    strikes.reach("stopping", timeout=20)
    ended = service.wait_state("inactive", "failed", timeout=60)
    assert (ended["ActiveState"], ended["Result"]) == ("inactive", "success"), service.journal()
    strikes.gone(status)
    left = service.machine.run("cat /sys/fs/cgroup/system.slice/kimi.service/cgroup.procs", check=False).stdout
    assert left.strip() == ""
    strikes.rows.append(("ignores-sigterm", "stopping", "0", time.monotonic() - at))
