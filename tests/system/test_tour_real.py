"""Every fault and every phase on real engines with two workers, under real systemd, with the fewest starts.

Three units of the same user and model share the machine, so that each is the stranger whom the others' stops and
clean-ups must leave alone. kimi serves: saturated for three minutes, and struck by what a ready engine must bear.
Meanwhile vllm@struck and vllm@hurt start again and again; each of their starts carries a fault into a phase. They are
what keeps the host busy: kimi runs with less of a right to the processors, so that it is the slow one. The GPUs of
vllm@struck are those of a fake NVML, its clock and the counters of killed processes can be moved. Not to be had on the
CPU: the phase `capturing-graphs`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from process.matrix.table import FAULTS, PHASES
from system.blows import CARDS, PARTS, READY
from system.lane import LONG_ENV, WITHIN_S, Lane
from system.service import ENGINE_PORT, Service
from system.striking import Strikes
from system.test_liveness_real import LOAD, LONG, ask, prefills_longer_than

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.timeout(1800)
SECONDS = float(os.environ.get("TOUR_SATURATE_SECONDS", "180"))
HANG_AFTER_S = 20.0
MILLION = 1_000_000
NOT_ON_THE_CPU = {"capturing-graphs"}
RESULTS = Path(__file__).parents[2] / "build" / "faults-real.json"


def test_the_tour_has_every_fault() -> None:
    struck = [blow.fault for blow in (*CARDS, *PARTS)]
    assert sorted([*struck, *READY]) == sorted(FAULTS)


def test_every_fault_and_every_phase(service: Service, engine: Path, tiny_model: Path) -> None:
    machine = service.machine
    state = service.state
    machine.run(
        f"mkdir -p {state} && mount -t tmpfs -o size=64m,uid=$(id -u vllm),gid=$(id -g vllm),mode=750 tmpfs {state}"
    )
    machine.put(LOAD, "/srv/load.py")
    lanes = {
        Lane(Service(machine, "struck", 8001, 9478), engine, tiny_model, cards=True): CARDS,
        Lane(Service(machine, "hurt", 8002, 9479), engine, tiny_model, cards=False): PARTS,
    }
    _configure(service, engine, tiny_model)
    kimi = Strikes(service)
    striking = [threading.Thread(target=lane.run, args=(blows,), daemon=True) for lane, blows in lanes.items()]
    try:
        for thread in striking:
            thread.start()
        done = service.start(timeout=900)
        assert done.returncode == 0, done.stderr + service.journal()
        _saturated(service, kimi)
        # What is asked of it from now on needs no patience.
        _configure(service, engine, tiny_model, report=True)
        _reported(service, kimi)
        _in_the_drain(service, kimi)
        for thread in striking:
            thread.join(900)
            assert not thread.is_alive(), "a lane does not end"
    except AssertionError as error:
        # The end of the journal is the engine's, or the flood.
        own = "journalctl -u kimi -o cat --no-pager | grep -a '^vllm-supervisor: ' | tail -n 60"
        error.add_note(machine.run(own, check=False, timeout=WITHIN_S).stdout)
        raise
    finally:
        rows = [row for lane in lanes for row in lane.strikes.rows] + kimi.rows
        _write(rows)
        _end(service, lanes, striking)
    problems = [problem for lane in lanes for problem in lane.problems]
    assert not problems, "\n\n".join(problems)
    assert {row[0] for row in rows} == set(FAULTS)
    assert {row[1] for row in rows} >= set(PHASES) - NOT_ON_THE_CPU
    for lane in lanes:
        service.wait("the journal has the line of every end", lane.in_the_journal, 120)
    left = machine.run("ps -u vllm -o pid=,args=; ls /dev/shm", check=False).stdout.strip()
    assert left == ""


def _end(service: Service, lanes: Iterable[Lane], striking: list[threading.Thread]) -> None:
    """Leave nothing for the tests after this one."""
    for lane in lanes:
        lane.halted = True
    machine = service.machine
    machine.run("systemctl stop kimi vllm@struck vllm@hurt", check=False, timeout=WITHIN_S)
    for thread in striking:
        thread.join(WITHIN_S)
    mounts = " ".join([service.state, *(lane.cache for lane in lanes)])
    machine.run(f"umount -l {mounts}; rm -rf /run/systemd/system/vllm@*.service.d", check=False)


def _configure(service: Service, engine: Path, model: Path, *, report: bool = False) -> None:
    service.real(
        engine,
        model,
        args={**LONG, "enforce-eager": True},
        env=LONG_ENV,
        liveness={
            "hang_after_s": 8.0 if report else HANG_AFTER_S,
            "mode": "report" if report else "restart",
            "canary_every_s": 3.0,
        },
        retry={"first_wait_s": 1.0, "max_wait_s": 1.0},
        stop={"drain_s": 12.0, "kill_after_s": 3.0},
        smoke={"on_start": "off"},
    )


def _write(rows: list[tuple[str, str, str, float]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    shown = [{"fault": a, "phase": b, "end": c, "seconds": round(d, 2)} for a, b, c, d in rows]
    RESULTS.write_text(json.dumps(shown, indent=1) + "\n")


def _lines(service: Service) -> float:
    """How many lines of the engine's output were read so far."""
    page = service.get("/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page if line.startswith("vllm_supervisor_output_lines_total{"))


def _tokens(service: Service) -> float:
    """How many tokens the engine has generated so far."""
    page = service.get("/metrics", ENGINE_PORT)[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page if line.startswith("vllm:generation_tokens_total{"))


def _printed(service: Service, kimi: Strikes, text: str, least: int, most: float = float("inf")) -> None:
    """Output of the engine's that must not hold it up: all of it is read and counted, and tokens go on coming.

    Args:
        service: kimi.
        kimi: Strikes it.
        text: A shell command that prints.
        least: So many lines are counted.
        most: No more than that, with all that the engine prints meanwhile.
    """
    before = _lines(service)
    # It ends when its last byte is in the pipe, which holds a megabyte.
    kimi.output(kimi.status(), text)
    service.wait("every line is counted", lambda: _lines(service) >= before + least, WITHIN_S)
    assert _lines(service) <= before + most
    tokens = _tokens(service)
    service.wait("tokens go on coming", lambda: _tokens(service) > tokens, WITHIN_S)


def _saturated(service: Service, kimi: Strikes) -> None:
    """Full for three minutes, and struck by what a ready engine must bear: never called hung, never restarted."""
    machine, before, main = service.machine, kimi.status(), service.show("MainPID")["MainPID"]
    reports: list[str] = []
    # The kernel shares processors between sessions first: a nice value of processes would change nothing between units.
    # Where it does not, the tour only takes longer.
    _nice(service, 5)

    def load() -> None:
        command = ["/usr/bin/python3", "/srv/load.py", str(SECONDS), "full"]
        reports.append(machine.run(command, timeout=SECONDS + 240).stdout)

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    stop, go = (f"systemctl kill -s {name} systemd-journald" for name in ("STOP", "CONT"))
    pause = "systemctl kill -s STOP kimi --kill-whom=main; sleep 15; systemctl kill -s CONT kimi --kill-whom=main"
    faults = {
        "journal-blocked": lambda: machine.run(f"{stop}; sleep 5; {go}", timeout=WITHIN_S),
        # One line, not as many as there are pieces of it.
        "giant-line": lambda: _printed(service, kimi, "head -c 100000000 /dev/zero | tr '\\0' x; echo", 1, 1000),
        "flood": lambda: _printed(service, kimi, f"yes 'a flood of lines' | head -n {MILLION}", MILLION),
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
    after = kimi.status()
    assert after["engine"]["pid"] == before["engine"]["pid"]
    assert (service.show("NRestarts")["NRestarts"], service.show("MainPID")["MainPID"]) == ("0", main)
    assert after["liveness"]["hung"] is False
    assert service.get("/readyz")[0] == 200


def _nice(service: Service, value: int) -> None:
    procs = f"/sys/fs/cgroup/system.slice/{service.unit}.service/cgroup.procs"
    service.machine.run(f"for pid in $(cat {procs}); do echo {value} > /proc/$pid/autogroup; done", check=False)


def _reported(service: Service, kimi: Strikes) -> None:
    """A worker that stands still is told and left alone, where a reload has said so; a request outlives the reload."""
    before = kimi.status()
    _nice(service, 0)
    answers: list[str] = []
    asking = ask(service, 1000, answers)
    done = service.machine.run(["systemctl", "reload", "kimi"], check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr + service.journal()
    asking.join(300)
    assert json.loads(answers[0])["usage"]["completion_tokens"] == 1000

    # The image of a moment ago has not looked at the engine's processes yet.
    at = kimi.signal(before, "worker", "STOP")
    service.wait("it is called hung", lambda: kimi.status()["liveness"]["hung"], 120)
    told = time.monotonic() - at
    kimi.signal(before, "worker", "CONT")
    service.wait("it answers again", lambda: not kimi.status()["liveness"]["hung"], 120)
    kimi.rows.append(("worker-stopped", "ready", "reported, goes on", told))
    service.wait("the journal names it", lambda: "engine-hung" in service.journal(200), 120)
    assert kimi.status()["engine"]["pid"] == before["engine"]["pid"]
    assert kimi.restarts() == 0


def _in_the_drain(service: Service, kimi: Strikes) -> None:
    """A worker stands still under a request that a stop waits for: the stop ends in its time all the same."""
    service.wait("the processes are seen", lambda: len(kimi.status()["engine"]["processes"]) >= 4, 60)
    status = kimi.status()
    ask(service, 60_000, [])
    # Who looks must be there when the drain begins: it takes seconds to start a program on a host that is busy.
    seen: list[dict[str, Any]] = []
    looking = threading.Thread(target=lambda: seen.append(kimi.reach("draining", timeout=60)), daemon=True)
    looking.start()
    service.machine.run(["systemctl", "stop", "--no-block", "kimi"])
    looking.join(120)
    assert seen, "it was never draining"
    at = kimi.signal(status, "all-workers", "STOP")
    ended = service.wait_state("inactive", "failed", timeout=WITHIN_S)
    assert (ended["ActiveState"], ended["Result"]) == ("inactive", "success"), service.journal()
    kimi.gone(status)
    kimi.rows.append(("all-workers-stopped", "draining", "0", time.monotonic() - at))
