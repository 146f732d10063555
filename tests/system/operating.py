"""Helpers for operations under real systemd: what the command line says, and a kill at a chosen step."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from process.fakes import write_model
from system.service import Service

UNIT = "vllm-supervisor-operation-kimi.service"
RECORD = "/var/lib/vllm-supervisor-operations/kimi/operation.jsonl"

# Python imports a module of this name before anything else: the operation then kills itself with SIGKILL, once for each
# chosen line of its record, right after that has reached the disk.
KILLER = r"""
import json, os, signal
real = os.fsync
def fsync(descriptor):
    real(descriptor)
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if not path.endswith("operation.jsonl"):
        return
    line = json.loads(open(path).read().splitlines()[-1])
    here = "/run/kill-at"
    chosen = open(here).read().splitlines() if os.path.exists(here) else []
    mine = f"{line.get('step')} {line.get('state')}"
    if mine in chosen:
        open(here, "w").write("\n".join(entry for entry in chosen if entry != mine))
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
"""


def fake(service: Service, knobs: dict[str, Any], **more: Any) -> None:
    """The fake engine with a checkpoint that is complete."""
    service.fake(knobs, **more)
    write_model(service.machine.root / "srv/model")


SOCKET = "/var/cache/vllm-supervisor/kimi/fake.sock"
HELD = {"pace": "manual", "control": SOCKET}
FINISHER = r"""
import json, socket, sys, time
until = time.monotonic() + 60
while True:
    try:
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(60)
        line.connect(sys.argv[1])
        break
    except OSError:
        line.close()
        assert time.monotonic() < until, "the engine has no control socket"
        time.sleep(0.05)
line.sendall(json.dumps({"do": "finish"}).encode() + b"\n")
print(line.recv(1000))
"""
FINISH = f"/usr/bin/python3 /srv/finish.py {SOCKET}"


def held(service: Service) -> None:
    """The fake engine prints no line of its start before `FINISH` has been run on the machine."""
    fake(service, HELD)
    service.machine.put(FINISHER, "/srv/finish.py")


def vsup(service: Service, *arguments: str, timeout: float = 90.0, **more: Any) -> subprocess.CompletedProcess[str]:
    """One call of the command on the machine."""
    return service.machine.run(["vllm-supervisor", *arguments], check=False, timeout=timeout, **more)


def lose_terminal(service: Service, arguments: str, shown: str) -> None:
    """Begin an operation, and hang up on whoever follows it once it has shown a line like this."""
    # Whoever runs the tests below `nohup` hands an ignored hang-up down to everything.
    done = service.machine.run(
        f"env --default-signal=HUP vllm-supervisor {arguments} >/run/lost.log 2>&1 & follower=$!; "
        f"until grep -qs '{shown}' /run/lost.log; do kill -0 $follower || break; sleep 0.05; done; "
        "kill -HUP $follower; wait $follower",
        check=False,
        timeout=120,
    )
    said = service.machine.run("cat /run/lost.log").stdout
    assert done.returncode == 128 + signal.SIGHUP, f"{done.returncode} {done.stderr}\n{said}"


def break_off(service: Service) -> None:
    """End the operation and everything that it runs, as a reboot would: nobody begins it again."""
    service.machine.run(["systemctl", "stop", UNIT], timeout=60)


def kill_at(service: Service, *lines: str) -> None:
    """Let the next operation be killed at each of these (`STEP begun`, `STEP done`), once."""
    service.machine.put(KILLER, "/srv/killer/sitecustomize.py")
    service.machine.put("[Service]\nEnvironment=PYTHONPATH=/srv/killer\n", f"/run/systemd/system/{UNIT}.d/killer.conf")
    service.machine.put("\n".join(lines), "/run/kill-at")
    service.machine.run("systemctl daemon-reload")


def kills_left(service: Service) -> str:
    """The kills that have not happened."""
    return service.machine.run("cat /run/kill-at", check=False).stdout.strip()


def record(service: Service) -> list[dict[str, Any]]:
    """The lines of the last operation."""
    text = service.machine.run(["cat", RECORD], check=False).stdout
    return [json.loads(line) for line in text.splitlines() if line]


def states(service: Service) -> dict[str, str]:
    """The last recorded state of each step."""
    return {line["step"]: line["state"] for line in record(service) if "step" in line}


def clean(service: Service) -> None:
    """No operation, no hook."""
    service.machine.run(
        f"systemctl stop {UNIT}; systemctl reset-failed {UNIT}; rm -rf /run/kill-at /run/systemd/system/{UNIT}.d "
        "/var/lib/vllm-supervisor-operations; systemctl daemon-reload",
        check=False,
        timeout=60,
    )
