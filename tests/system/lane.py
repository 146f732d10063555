"""A lane of the tour: one unit whose starts carry one fault after the other."""

from __future__ import annotations

import time
from pathlib import Path

from fake.gpus import FAKE_NVML
from process.matrix.scene import shift_library
from process.matrix.table import OUTCOMES
from system.blows import Blow, gpu_file
from system.service import Service
from system.striking import Strikes

WITHIN_S = 180.0
START_S = 900.0
LONG_ENV = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}


class Lane:
    """vllm@struck: a real engine on the CPU beside two cards of a fake NVML, a clock and a counter that can be moved."""

    cache, shift, events = "/srv/struck/cache", "/srv/struck/shift", "/srv/struck/memory.events"

    def __init__(self, service: Service, vllm: Path, model: Path) -> None:
        self.service, self.machine = service, service.machine
        self.strikes = Strikes(service)
        self.problems: list[str] = []
        self.halted = False
        self._vllm, self._model = vllm, model
        self._orphan = ""
        self.machine.run("mkdir -p /srv/struck")
        for source in FAKE_NVML.glob("*.py"):
            self.machine.put(source, f"/srv/struck/nvml/{source.name}")
        self.machine.put(shift_library(), "/srv/struck/clock.so", 0o755)
        self.machine.put("0", self.shift)
        self.machine.put("oom_kill 0\n", self.events)
        self.gpus({})
        self.settings()

    def gpus(self, change: dict[str, object]) -> None:
        """The second card has changed."""
        self.machine.put(gpu_file(change), "/srv/struck/gpus.new")
        self.machine.run("mv /srv/struck/gpus.new /srv/struck/gpus.json")

    def settings(self, *, eager: bool = True, stall: float = 0.0, wait: float = 1.0, smoke: str = "off") -> None:
        """Configuration and drop-in of the next start; `stall` and `wait`, before an attempt, in seconds."""
        tables: dict[str, dict[str, object]] = {"stall": {"launching": stall, "configuring": stall}} if stall else {}
        self.service.real(
            self._vllm,
            self._model,
            args={"enforce-eager": eager},
            device="cuda",
            env={"PYTHONPATH": "", "LD_PRELOAD": ""},
            retry={"first_wait_s": wait, "max_wait_s": wait, "max_attempts": 50},
            liveness={"hang_after_s": 8.0, "canary_every_s": 3.0},
            stop={"drain_s": 10.0, "kill_after_s": 3.0},
            smoke={"on_start": smoke},
            **tables,
        )
        self.drop_in("")

    def drop_in(self, more: str) -> None:
        """What the unit gets besides its own lines; `more` comes first, because it may empty a list of theirs."""
        counter = f"/sys/fs/cgroup/system.slice/system-vllm.slice/{self.service.unit}.service/memory.events"
        lines = [
            "Environment=PYTHONPATH=/srv/struck/nvml VSUP_FAKE_NVML=/srv/struck/gpus.json",
            f"Environment=LD_PRELOAD=/srv/struck/clock.so CLOCK_SHIFT_FILE={self.shift}",
            f"ProtectControlGroups=no\nTemporaryFileSystem=/sys/fs/cgroup\nBindReadOnlyPaths={self.events}:{counter}",
        ]
        self.service.override("[Service]\n" + "\n".join([more, *lines]) + "\n")

    def page(self) -> str:
        """The supervisor's metrics; empty while nobody answers."""
        return self.service.get("/metrics")[1]

    def gpus_up(self) -> bool:
        """Whether every card is up."""
        found = [line for line in self.page().splitlines() if line.startswith("vllm_supervisor_gpu_up{")]
        return bool(found) and all(line.endswith(" 1.0") for line in found)

    def helper(self) -> str:
        """The pid of the GPU helper; empty while there is none."""
        main = self.service.show("MainPID")["MainPID"]
        return self.machine.run(f"pgrep -P {main} -f '[a]dapters.nvml ' | head -n 1", check=False).stdout.strip()

    def systemctl(self, verb: str) -> None:
        """Ask for it and do not wait."""
        self.machine.run(["systemctl", verb, "--no-block", self.service.unit])

    def hit(self, who: str, name: str) -> None:
        """A signal to a part of the engine, found by its place in the tree: an importing worker has no title yet."""
        pids = self._parts(who)
        assert pids, f"no {who} there"
        self.machine.run(["kill", f"-{name}", *pids], check=False)

    def _parts(self, who: str) -> list[str]:
        main = self.service.show("MainPID")["MainPID"]
        if who == "supervisor":
            return [main]
        api = self.service.wait("the API server", lambda: self._children(main, "[v]llm serve"), 60)
        if who == "api-server":
            return list(api)
        core = self.service.wait(f"{who} is there", lambda: self._children(api[0], "[E]ngineCore|[s]pawn_main"), 120)
        if who == "engine-core":
            return list(core[-1:])
        found: list[str] = list(self.service.wait(f"{who} is there", lambda: self._pair(core[-1]), 120))
        if who == "largest":
            shown = self.machine.run(f"ps -o pid= --sort=-rss -p {','.join(found)} | head -n 1").stdout
            return shown.split()
        return found if who == "all-workers" else found[-1:]

    def _pair(self, core: str) -> list[str]:
        found = self._children(core, "[W]orker|[s]pawn_main")
        return found if len(found) >= 2 else []

    def _children(self, parent: str, pattern: str) -> list[str]:
        shown = self.machine.run(f"pgrep -P {parent} -f '{pattern}'", check=False).stdout
        return sorted(shown.split(), key=int)

    def second(self) -> None:
        """Another supervisor for the same instance is refused."""
        env = f"STATE_DIRECTORY={self.service.state} RUNTIME_DIRECTORY=/run/vllm-supervisor/{self.service.name}"
        command = f"env {env} vllm-supervisor run --config {self.service.config}"
        done = self.machine.run(["/bin/sh", "-c", command], user="vllm", check=False, timeout=WITHIN_S)
        assert done.returncode == 75, done.stderr
        assert "already supervised by" in done.stderr

    def stop_with_orphan(self) -> None:
        """Somebody in the engine forks twice: the orphan carries the engine's environment, and is the supervisor's."""
        api = self._parts("api-server")[0]
        # Outside of the unit's cgroup, so that systemd would leave it.
        self._orphan = self.machine.run(
            f"mark=$(tr '\\0' '\\n' < /proc/{api}/environ | grep -a '^VSUP_'); "
            'runuser -u vllm -- sh -c "env $mark setsid sleep 900 >/dev/null 2>&1 & echo \\$!"'
        ).stdout.strip()
        self.systemctl("stop")

    def run(self, blows: tuple[Blow, ...]) -> None:
        """Strike them all; what goes wrong is noted, and the next one begins with a start of its own."""
        self._prepare(blows)
        for number, blow in enumerate(blows):
            rest = blows[number + 1 :]
            if self.halted:
                return
            try:
                self._one(blow, rest)
            except (AssertionError, OSError, KeyError, IndexError) as error:
                if self.halted:
                    return
                self.problems.append(f"{blow.fault}: {str(error)[:3000]}")
                self.machine.run(["systemctl", "stop", self.service.unit], check=False, timeout=WITHIN_S)
                self._prepare(rest)
        self.machine.run(["systemctl", "stop", self.service.unit], check=False, timeout=WITHIN_S)

    def _prepare(self, blows: tuple[Blow, ...]) -> None:
        """Make ready what the next start carries: all up to the blow that ends it."""
        for blow in blows:
            if blow.prepare is not None:
                blow.prepare(self)
            if blow.letter != ">":
                return

    def _one(self, blow: Blow, rest: tuple[Blow, ...]) -> None:
        if self.service.show("ActiveState")["ActiveState"] in {"inactive", "failed"}:
            self.service.start(START_S, block=not blow.phases)
        status = self.strikes.reach(*blow.phases, timeout=START_S) if blow.phases else {}
        # systemd's own next start reads its configuration as soon as this one has ended.
        again = blow.letter != ">" and (blow.code == 75 or OUTCOMES[blow.letter].end in {"again", "restarted"})
        if again:
            self._prepare(rest)
        before, main, at = self.strikes.restarts(), self.service.show("MainPID")["MainPID"], time.monotonic()
        phase = blow.strike(self)
        end = self._end(blow, before, main)
        seen = phase if isinstance(phase, str) else str(status.get("phase", "preflight"))
        self.strikes.rows.append((blow.fault, seen, end, time.monotonic() - at))
        if status.get("engine", {}).get("pid") and blow.letter != ">":
            self.strikes.gone(status)
        if self._orphan:
            shown = self.machine.run(f"test -d /proc/{self._orphan} && echo left", check=False).stdout
            assert not shown, "an orphan of the engine was left"
        if blow.letter != ">" and not again:
            self._prepare(rest)

    def _end(self, blow: Blow, before: int, main: str) -> str:
        """What came of it, as the report says it."""
        outcome = OUTCOMES[blow.letter]
        service = self.service
        if outcome.end == "goes-on":
            return "goes on"
        if outcome.end == "again":
            service.wait("systemd starts it again", lambda: self.strikes.restarts() > before, WITHIN_S)
            return "swept by systemd, started again"
        if outcome.end == "restarted":
            service.wait("it starts again", lambda: service.show("MainPID")["MainPID"] not in {main, "0"}, WITHIN_S)
            return "0, started again"
        if outcome.code == 75:
            service.wait("systemd starts it again", lambda: self.strikes.restarts() > before, WITHIN_S)
        else:
            ended = service.wait_state("inactive", "failed", timeout=START_S)
            assert ended["ExecMainStatus"] == str(outcome.code), f"{ended}\n{service.journal(60)}"
        if outcome.code:
            # The journal may stand still for a while: that is one of the other lane's faults.
            service.wait(f"exit {outcome.code} for {set(blow.named)} is told", lambda: self._told(blow), 60)
        return str(outcome.code)

    def _told(self, blow: Blow) -> bool:
        sentence = self.strikes.last_end()
        return f"(exit {blow.code})" in sentence and any(reason in sentence for reason in blow.named)
