"""Every fault and every phase on real engines with two workers, under real systemd, with the fewest starts.

Two units of the same user and model share the machine, so that each is the stranger whom the other's stops and
clean-ups must leave alone. kimi serves: saturated for three minutes, and struck by what a ready engine must bear.
Meanwhile vllm@struck starts again and again; each of its starts carries a fault into a later phase. It is what keeps
the host busy: kimi runs with less of a right to the processors, so that it is the slow one. The GPUs of vllm@struck are
those of a fake NVML, its clock and its counter of killed processes can be moved. Not to be had on the CPU: the phase
`capturing-graphs`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from process.matrix.table import FAULTS, PHASES
from system.blows import BLOWS, READY
from system.lane import LONG_ENV, WITHIN_S, Lane
from system.service import Service
from system.striking import Strikes
from system.test_liveness_real import LOAD, LONG, ask, prefills_longer_than

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]
SECONDS = float(os.environ.get("TOUR_SATURATE_SECONDS", "180"))
HANG_AFTER_S = 20.0
NOT_ON_THE_CPU = {"capturing-graphs"}
RESULTS = Path(__file__).parents[2] / "build" / "faults-real.json"


def test_the_tour_has_every_fault() -> None:
    struck = [blow.fault for blow in BLOWS]
    assert sorted([*struck, *READY]) == sorted(FAULTS)


def test_every_fault_and_every_phase(service: Service, engine: Path, tiny_model: Path) -> None:
    machine = service.machine
    state = service.state
    machine.run(
        f"mkdir -p {state} && mount -t tmpfs -o size=64m,uid=$(id -u vllm),gid=$(id -g vllm),mode=750 tmpfs {state}"
    )
    machine.put(LOAD, "/srv/load.py")
    args = {**LONG, "enforce-eager": True}
    lane = Lane(Service(machine, "struck", 8001, 9478), engine, tiny_model)
    service.real(
        engine,
        tiny_model,
        args=args,
        env=LONG_ENV,
        liveness={"hang_after_s": HANG_AFTER_S, "canary_every_s": 3.0},
        retry={"first_wait_s": 1.0, "max_wait_s": 1.0},
        stop={"drain_s": 10.0, "kill_after_s": 3.0},
        smoke={"on_start": "off"},
    )
    kimi = Strikes(service)
    striking = threading.Thread(target=lane.run, args=(BLOWS,), daemon=True)
    try:
        striking.start()
        done = service.start(timeout=900)
        assert done.returncode == 0, done.stderr + service.journal()
        _saturated(service, kimi)
        _reported(service, kimi)
        _in_the_drain(service, kimi)
        striking.join(900)
        assert not striking.is_alive(), "the struck lane does not end"
    finally:
        lane.halted = True
        _write([*lane.strikes.rows, *kimi.rows])
        machine.run("systemctl stop kimi vllm@struck", check=False, timeout=WITHIN_S)
        striking.join(WITHIN_S)
        machine.run(f"umount -l {state} {lane.cache}; rm -rf /run/systemd/system/vllm@struck.service.d", check=False)
    assert not lane.problems, "\n\n".join(lane.problems)
    rows = [*lane.strikes.rows, *kimi.rows]
    assert {row[0] for row in rows} == set(FAULTS)
    assert {row[1] for row in rows} >= set(PHASES) - NOT_ON_THE_CPU
    left = machine.run("ps -u vllm -o pid=,args=; ls /dev/shm", check=False).stdout.strip()
    assert left == ""


def _write(rows: list[tuple[str, str, str, float]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    shown = [{"fault": a, "phase": b, "end": c, "seconds": round(d, 1)} for a, b, c, d in rows]
    RESULTS.write_text(json.dumps(shown, indent=1) + "\n")


def _saturated(service: Service, kimi: Strikes) -> None:
    """Full for three minutes, and struck by what a ready engine must bear: never called hung, never restarted."""
    machine, before, main = service.machine, kimi.status(), service.show("MainPID")["MainPID"]
    reports: list[str] = []
    # The kernel shares processors between sessions first: a nice value of processes would change nothing between units.
    # Where it does not, the tour only takes longer.
    machine.run(
        "for pid in $(cat /sys/fs/cgroup/system.slice/kimi.service/cgroup.procs); do echo 5 > /proc/$pid/autogroup; done",
        check=False,
    )

    def load() -> None:
        command = ["/usr/bin/python3", "/srv/load.py", str(SECONDS), "full"]
        reports.append(machine.run(command, timeout=SECONDS + 240).stdout)

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    stop, go = (f"systemctl kill -s {name} systemd-journald" for name in ("STOP", "CONT"))
    pause = "systemctl kill -s STOP kimi --kill-whom=main; sleep 15; systemctl kill -s CONT kimi --kill-whom=main"
    faults = {
        "journal-blocked": lambda: machine.run(f"{stop}; sleep 5; {go}", timeout=WITHIN_S),
        "giant-line": lambda: kimi.output(before, "head -c 100000000 /dev/zero | tr '\\0' x; echo"),
        "flood": lambda: kimi.output(before, "yes 'flood flood flood flood flood flood flood' | head -n 1000000"),
        "supervisor-stopped": lambda: machine.run(pause, timeout=WITHIN_S),
        "state-disk-full": lambda: machine.run(
            f"cat /dev/zero > {service.state}/filler; systemctl reload kimi; rm {service.state}/filler",
            timeout=WITHIN_S,
        ),
        "port-stolen": lambda: machine.run("! timeout 10 /usr/bin/python3 -m http.server 8000 --bind 127.0.0.1"),
    }
    for name, strike in faults.items():
        at = time.monotonic()
        strike()
        service.wait(f"{name} is over", lambda: kimi.status().get("ready"), WITHIN_S)
        kimi.rows.append((name, "ready", "goes on", time.monotonic() - at))
    loading.join(SECONDS + 240)
    report = json.loads(reports[0])
    # It means something only when the engine was full, and a prefill longer than the patience with a quiet engine.
    assert prefills_longer_than(service, 10.0) > 0, report
    assert report["counts"].get("queue answered", 0) > 0, report
    assert "engine-hung" not in service.journal(100_000), report
    after = kimi.status()
    assert after["engine"]["pid"] == before["engine"]["pid"]
    assert (service.show("NRestarts")["NRestarts"], service.show("MainPID")["MainPID"]) == ("0", main)
    assert after["liveness"]["hung"] is False
    assert service.get("/readyz")[0] == 200


def _reload(service: Service, old: str, new: str) -> None:
    """Change the configuration and re-execute the supervisor."""
    machine, path = service.machine, service.config
    text = (machine.root / path.lstrip("/")).read_text()
    assert old in text
    machine.put(text.replace(old, new), path)
    done = machine.run(["systemctl", "reload", "kimi"], check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr + service.journal()


def _reported(service: Service, kimi: Strikes) -> None:
    """A worker that stands still is told and left alone, where a reload has said so; a request outlives the reload."""
    before = kimi.status()
    answers: list[str] = []
    asking = ask(service, 1000, answers)
    _reload(service, "[liveness]\n", '[liveness]\n"mode" = "report"\n')
    asking.join(300)
    assert json.loads(answers[0])["usage"]["completion_tokens"] == 1000

    # The image of a moment ago has not looked at the engine's processes yet.
    at = kimi.signal(before, "worker", "STOP")
    service.wait("it is called hung", lambda: kimi.status()["liveness"]["hung"], 120)
    assert "engine-hung" in service.journal(60)
    kimi.signal(before, "worker", "CONT")
    service.wait("it answers again", lambda: not kimi.status()["liveness"]["hung"], 120)
    kimi.rows.append(("worker-stopped", "ready", "reported, goes on", time.monotonic() - at))
    assert kimi.status()["engine"]["pid"] == before["engine"]["pid"]
    assert kimi.restarts() == 0


def _in_the_drain(service: Service, kimi: Strikes) -> None:
    """A worker stands still under a request that a stop waits for: the stop ends in its time all the same."""
    service.wait("the processes are seen", lambda: len(kimi.status()["engine"]["processes"]) >= 4, 60)
    status = kimi.status()
    ask(service, 60_000, [])
    service.machine.run(["systemctl", "stop", "--no-block", "kimi"])
    kimi.reach("draining", timeout=60)
    at = kimi.signal(status, "all-workers", "STOP")
    ended = service.wait_state("inactive", "failed", timeout=WITHIN_S)
    assert (ended["ActiveState"], ended["Result"]) == ("inactive", "success"), service.journal()
    kimi.gone(status)
    kimi.rows.append(("all-workers-stopped", "draining", "0", time.monotonic() - at))
