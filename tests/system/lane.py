"""A lane of the tour: one unit whose starts carry one fault after the other."""

from __future__ import annotations

import time
from pathlib import Path

from fake.gpus import FAKE_NVML
from process.matrix.scene import shift_library
from process.matrix.table import OUTCOMES
from system.blows import LATE, Blow, gpu_file
from system.service import Service
from system.striking import Strikes

WITHIN_S = 180.0
START_S = 900.0
LONG_ENV = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}


class Lane:
    """A vllm@NAME: a real engine on the CPU, and a counter of killed processes that can be moved.

    Args:
        service: The unit.
        vllm: The engine's command.
        model: What it serves.
        cards: Beside two cards of a fake NVML, with a clock that can be moved.
    """

    def __init__(self, service: Service, vllm: Path, model: Path, *, cards: bool) -> None:
        self.service, self.machine = service, service.machine
        self.strikes = Strikes(service)
        self.problems: list[str] = []
        self.halted = False
        self._vllm, self._model, self._cards = vllm, model, cards
        self._orphan = ""
        self._sentences: list[str] = []
        self.folder = f"/srv/{service.name}"
        self.cache, self.shift, self.events = (f"{self.folder}/{name}" for name in ("cache", "shift", "memory.events"))
        self.machine.run(["mkdir", "-p", self.folder])
        self.machine.put("oom_kill 0\n", self.events)
        if cards:
            for source in FAKE_NVML.glob("*.py"):
                self.machine.put(source, f"{self.folder}/nvml/{source.name}")
            self.machine.put(shift_library(), f"{self.folder}/clock.so", 0o755)
            self.machine.put("0", self.shift)
            self.gpus({})
        self.settings()

    def gpus(self, change: dict[str, object]) -> None:
        """The second card has changed."""
        self.machine.put(gpu_file(change), f"{self.folder}/gpus.new")
        self.machine.run(f"mv {self.folder}/gpus.new {self.folder}/gpus.json")

    def settings(self, *, eager: bool = True, stall: float = 0.0, wait: float = 1.0, smoke: str = "off") -> None:
        """Configuration and drop-in of the next start; `stall` and `wait`, before an attempt, in seconds."""
        tables: dict[str, dict[str, object]] = {"stall": {"launching": stall, "configuring": stall}} if stall else {}
        self.service.real(
            self._vllm,
            self._model,
            args={"enforce-eager": eager},
            device="cuda" if self._cards else "cpu",
            env={"PYTHONPATH": "", "LD_PRELOAD": ""} if self._cards else {},
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
            f"ProtectControlGroups=no\nTemporaryFileSystem=/sys/fs/cgroup\nBindReadOnlyPaths={self.events}:{counter}"
        ]
        if self._cards:
            lines += [
                f"Environment=PYTHONPATH={self.folder}/nvml VSUP_FAKE_NVML={self.folder}/gpus.json",
                f"Environment=LD_PRELOAD={self.folder}/clock.so CLOCK_SHIFT_FILE={self.shift}",
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

    def hit(self, who: str, name: str, first: str = "true") -> None:
        """A signal to a part of the engine, found by its place in the tree: an importing worker has no title yet.

        Args:
            who: The part.
            first: A shell command that is run right before.
        """
        pids = self._parts(who)
        assert pids, f"no {who} there"
        self.machine.run(f"{first}; kill -{name} {' '.join(pids)}", check=False)

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
        again = Blow("worker-killed", LATE, "D", lambda lane: lane.hit("worker", "KILL"))
        todo = list(blows)
        self._prepare(blows)
        # A phase that came and went between two looks gets another start.
        spare = 3 if any(blow.phases == LATE for blow in blows) else 0
        while todo and not self.halted:
            blow = todo.pop(0)
            try:
                self._one(blow, tuple(todo))
            except (AssertionError, OSError, KeyError, IndexError) as error:
                if self.halted:
                    return
                self.problems.append(f"{blow.fault}: {str(error)[:3000]}")
                self.machine.run(["systemctl", "stop", self.service.unit], check=False, timeout=WITHIN_S)
                self._prepare(tuple(todo))
            if not todo and spare and self._missing():
                spare -= 1
                todo.append(again)
        if not self.halted:
            self.machine.run(["systemctl", "stop", self.service.unit], check=False, timeout=WITHIN_S)

    def _missing(self) -> list[str]:
        """The late phases in which nothing has struck so far."""
        return [phase for phase in LATE if phase not in {row[1] for row in self.strikes.rows}]

    def _where(self, blow: Blow) -> tuple[str, ...]:
        """Where it may strike; a late one strikes the ready engine where all others were missed."""
        return (*(self._missing() or LATE), "ready") if blow.phases == LATE else blow.phases

    def _prepare(self, blows: tuple[Blow, ...]) -> None:
        """Make ready what the next start carries: all up to the blow that ends it."""
        for blow in blows:
            if blow.prepare is not None:
                blow.prepare(self)
            if blow.letter != ">":
                return

    def _one(self, blow: Blow, rest: tuple[Blow, ...]) -> None:
        at = time.monotonic()
        if self.service.show("ActiveState")["ActiveState"] in {"inactive", "failed"}:
            self.service.start(START_S, block=not blow.phases)
        status = self.strikes.reach(*self._where(blow), timeout=START_S) if blow.phases else {}
        # systemd's own next start reads its configuration as soon as this one has ended.
        again = blow.letter != ">" and (blow.code == 75 or OUTCOMES[blow.letter].end in {"again", "restarted"})
        if again:
            self._prepare(rest)
        before, main = self.strikes.restarts(), self.service.show("MainPID")["MainPID"]
        # What lies in the start itself has struck when that was asked for.
        at = time.monotonic() if blow.phases else at
        phase = blow.strike(self)
        end = self._end(blow, before, main)
        took = time.monotonic() - at
        seen = phase if isinstance(phase, str) else str(status.get("phase", "preflight"))
        self.strikes.rows.append((blow.fault, seen, end, took))
        if OUTCOMES[blow.letter].end != "goes-on" and blow.code:
            self._told(blow, status.get("began_at"))
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
        return str(outcome.code)

    def _told(self, blow: Blow, began_at: float | None) -> None:
        """The start that was struck has ended for the right reason, by its own history."""
        row = self.service.wait("its end is recorded", lambda: self.strikes.end_of(began_at), 60)
        assert (row["exit_code"], row["reason"]) in {(blow.code, reason) for reason in blow.named}, row
        self._sentences.append(f"vllm-supervisor: {row['sentence']} (exit {blow.code})")

    def in_the_journal(self) -> bool:
        """Whether every end has its line there; the journal stands still for a while, and is flooded."""
        command = ["journalctl", "-u", self.service.unit, "-o", "cat", "--no-pager"]
        return set(self._sentences) <= set(self.machine.run(command).stdout.splitlines())
