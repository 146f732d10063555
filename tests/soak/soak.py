"""`make soak MINUTES=n`: a real engine under mixed load, and a random fault every minute.

It says what was survived, which alarms were false, what was left over, how long the longest outage was, and how memory
and descriptors of the supervisor grew while one image of it lived.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "supervisor")]

from lab import paths  # noqa: E402 - only importable from here on
from lab.install import stage_product  # noqa: E402
from lab.machine import Bind, Machine  # noqa: E402
from lab.models import tiny_model  # noqa: E402
from system.service import Service  # noqa: E402
from system.striking import STATE, Strikes  # noqa: E402

FATAL = {
    "api-server-killed": ("api-server", "KILL"),
    "engine-core-killed": ("engine-core", "KILL"),
    "worker-killed": ("worker", "KILL"),
    "all-workers-killed": ("all-workers", "KILL"),
    "worker-segfault": ("worker", "SEGV"),
    "worker-stopped": ("worker", "STOP"),
    "engine-core-stopped": ("engine-core", "STOP"),
    "supervisor-killed": ("supervisor", "KILL"),
}
HARMLESS = ("flood", "journal-blocked", "supervisor-stopped", "reload", "second-supervisor", "state-disk-full")
HANG_AFTER_S = 15.0
BACK_WITHIN_S = 900.0
COMMAND_S = 200.0
"""What a command may take on two cores that an engine keeps busy: the interpreter alone takes many seconds to start."""
SETTLED_S = 60.0


@dataclass
class Report:
    """What is told at the end."""

    minutes: float
    seed: int
    faults: list[dict[str, Any]] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    longest_outage_s: float = 0.0
    resident_growth_kib: int | None = None
    descriptor_growth: int | None = None
    measured_s: float = 0.0
    load: list[dict[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.false_alarms and not self.leftovers and all(fault["survived"] for fault in self.faults)


class Soak:
    """One run."""

    def __init__(self, service: Service, report: Report) -> None:
        self.service, self.report = service, report
        self.strikes = Strikes(service)
        self.choose = random.Random(report.seed)
        self.sizes: dict[str, list[tuple[float, int, int]]] = {}
        self.bag: list[str] = []

    def next_fault(self) -> str:
        """Every kind once, in an order of chance, before one comes again."""
        if not self.bag:
            self.bag = [*FATAL, *HARMLESS]
            self.choose.shuffle(self.bag)
        return self.bag.pop()

    def measure(self) -> None:
        """Resident KiB and descriptors of the supervisor, by its pid."""
        pid = self.service.show("MainPID")["MainPID"]
        shown = self.service.machine.run(
            f"awk '/VmRSS/{{print $2}}' /proc/{pid}/status; ls /proc/{pid}/fd | wc -l", check=False
        )
        if len(words := shown.stdout.split()) == 2:
            self.sizes.setdefault(pid, []).append((time.monotonic(), int(words[0]), int(words[1])))

    def quiet(self, seconds: float) -> None:
        """Nothing is done; whatever ends meanwhile was a false alarm."""
        before, until = self.strikes.restarts(), time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.measure()
            time.sleep(min(left, 5.0))
            if self.strikes.restarts() != before:
                self.report.false_alarms.append(self.strikes.last_end())
                self.back()
                return

    def back(self) -> None:
        self.service.wait_state("active", timeout=BACK_WITHIN_S)
        self.service.wait("it is ready again", lambda: self.strikes.status().get("ready"), BACK_WITHIN_S)

    def strike(self, name: str) -> None:
        """One fault, and how the service came out of it."""
        status, before, at = self.strikes.status(), self.strikes.restarts(), time.monotonic()
        survived, end = True, "goes on"
        try:
            if name in FATAL:
                self.strikes.signal(status, *FATAL[name])
                end = self.strikes.ends(before, HANG_AFTER_S + 100).removeprefix("vllm-supervisor: ")[:120]
                if name == "supervisor-killed":
                    end = "swept by systemd, started again"  # a killed one leaves no sentence of its own
                self.strikes.gone(status)
            else:
                self.harmless(name, status)
            self.back()
            if name not in FATAL and self.strikes.restarts() != before:
                self.report.false_alarms.append(f"{name}: {self.strikes.last_end()}")
        except AssertionError as error:
            survived, end = False, " ".join(str(error).split())[:300]
        # What must not end the engine is not measured.
        outage = round(time.monotonic() - at, 1) if name in FATAL else None
        self.report.longest_outage_s = max(self.report.longest_outage_s, outage or 0.0)
        self.report.faults.append({"fault": name, "survived": survived, "end": end, "outage_s": outage})
        print(f"{name}: {end}{'' if outage is None else f' ({outage:.0f} s)'}", flush=True)

    def harmless(self, name: str, status: dict[str, Any]) -> None:
        """What must not end an engine."""
        machine = self.service.machine
        if name == "flood":
            self.strikes.output(status, "yes 'flood flood flood flood flood flood' | head -n 300000")
        elif name == "journal-blocked":
            machine.run(
                "systemctl kill -s STOP systemd-journald; sleep 5; systemctl kill -s CONT systemd-journald", timeout=60
            )
        elif name == "supervisor-stopped":
            machine.run(
                "systemctl kill -s STOP --kill-whom=main kimi; sleep 15; systemctl kill -s CONT --kill-whom=main kimi"
            )
        elif name == "reload":
            machine.run(["systemctl", "reload", "kimi"], timeout=COMMAND_S)
        elif name == "second-supervisor":
            env = "STATE_DIRECTORY=/var/lib/vllm-supervisor/kimi RUNTIME_DIRECTORY=/run/vllm-supervisor/kimi"
            machine.run(
                f"! env {env} vllm-supervisor run --config /etc/vllm-supervisor/kimi.toml",
                user="vllm",
                timeout=COMMAND_S,
            )
        else:
            machine.run(f"cat /dev/zero > {STATE}/filler; sleep 5; rm {STATE}/filler", timeout=60)

    def grown(self) -> None:
        """Growth while one image lived, of the one that lived longest: the last size against that after a minute."""
        sizes = max(self.sizes.values(), key=len, default=[])
        settled = next((index for index, each in enumerate(sizes) if each[0] - sizes[0][0] >= SETTLED_S), None)
        if settled is not None and settled + 1 < len(sizes):
            (began, resident, descriptors), last = sizes[settled], sizes[-1]
            self.report.measured_s = round(last[0] - began, 1)
            self.report.resident_growth_kib = last[1] - resident
            self.report.descriptor_growth = last[2] - descriptors


def run(service: Service, report: Report) -> None:
    """Start, load, strike, stop."""
    machine = service.machine
    machine.run(
        f"mkdir -p {STATE} && mount -t tmpfs -o size=64m,uid=$(id -u vllm),gid=$(id -g vllm),mode=750 tmpfs {STATE}"
    )
    service.real(
        paths.vllm(),
        tiny_model(),
        liveness={"hang_after_s": HANG_AFTER_S, "canary_every_s": 5.0},
        retry={"first_wait_s": 1.0, "max_wait_s": 1.0, "max_attempts": 1000},
        smoke={"on_start": "off"},
    )
    machine.put(Path(__file__).with_name("load.py"), "/srv/load.py")
    done = service.start(timeout=BACK_WITHIN_S)
    assert done.returncode == 0, done.stderr + service.journal()
    soak = Soak(service, report)
    seconds = report.minutes * 60.0
    until = time.monotonic() + seconds

    def load() -> None:
        done = machine.run(["/usr/bin/python3", "/srv/load.py", str(seconds), "mixed"], timeout=seconds + 600)
        report.load.append(json.loads(done.stdout))

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    while time.monotonic() < until:
        soak.quiet(min(60.0, max(until - time.monotonic(), 0.0)))
        if time.monotonic() < until:
            soak.strike(soak.next_fault())
    loading.join(700)
    assert report.load, "the load does not end"
    soak.grown()
    service.stop()
    left = machine.run(f"ps -u vllm -o pid=,args=; ls /dev/shm; umount -l {STATE}", check=False).stdout.strip()
    report.leftovers += left.splitlines()


def main() -> int:
    """1 when something was not survived, left over, or a false alarm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak.json")
    args = parser.parse_args()
    report = Report(args.minutes, args.seed)
    home = paths.dev_home()
    with (
        tempfile.TemporaryDirectory() as stage,
        Machine(layers=[stage_product(Path(stage) / "stage")], binds=[Bind(home)]) as machine,
    ):
        machine.run("systemd-sysusers && systemd-tmpfiles --create vllm-supervisor.conf && systemctl daemon-reload")
        run(Service(machine), report)
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(asdict(report), indent=1) + "\n")
    print(
        f"{sum(fault['survived'] for fault in report.faults)} of {len(report.faults)} faults survived, "
        f"{len(report.false_alarms)} false alarms, {len(report.leftovers)} left over, longest outage "
        f"{report.longest_outage_s:.0f} s; growth in {report.measured_s:.0f} s of one image: "
        f"{report.resident_growth_kib} KiB, {report.descriptor_growth} descriptors (None: too short to tell)"
    )
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
