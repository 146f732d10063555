"""kimi-weights.service and kimi.service under real systemd, on the scripted engine with GPUs of a fake NVML."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from process.fakes import write_model
from system.cards import PLACE, VARIABLES, Cards
from system.operating import clean
from system.service import FAKE, SCRIPT, Service

HELD = 80 << 30
pytestmark = pytest.mark.timeout(300)


class Pair:
    """Both units, and what they hold on the GPUs."""

    def __init__(self, service: Service) -> None:
        self.service, self.machine = service, service.machine
        self.holder = "kimi-weights" if service.name == "kimi" else f"vllm-weights@{service.name}"
        self.cards = Cards(service, units=(f"{self.holder}.service",))
        self.gpus([])
        self.machine.put(json.dumps({"pace": 0, "workers": 2}), SCRIPT)
        write_model(self.machine.root / "srv/model")
        service.configure(
            {
                "command": ["/usr/bin/python3", FAKE, "serve"],
                "model": "/srv/model",
                "device": "cuda",
                "args": {"tensor-parallel-size": 2},
                "env": {"FAKE_ENGINE": SCRIPT},
            },
            smoke={"on_start": "off"},
            weights={"held": True},
            retry={"first_wait_s": 1.0, "max_wait_s": 1.0},
        )
        self.machine.run(f"systemctl enable --quiet {self.holder}")

    def gpus(self, pids: list[int]) -> None:
        """Each of these holds its part of the weights on a GPU of its own."""
        empty: list[dict[str, object]] = [{"uuid": "GPU-0"}, {"uuid": "GPU-1"}]
        held: list[dict[str, object]] = [
            {"uuid": f"GPU-{number}", "memory_used": HELD, "processes": [[pid, HELD]]}
            for number, pid in enumerate(pids)
        ]
        self.cards.state = held or empty
        self.cards.write()

    def ranks(self) -> list[int]:
        """Who holds weights."""
        main = self.machine.show(self.holder, "MainPID")
        shell = f"for pid in $(pgrep -f '[v]llm.py preload' -P {main}); do pgrep -f '[s]pawn_main' -P $pid; done"
        return sorted(map(int, self.machine.run(shell, check=False).stdout.split()))

    def said(self, command: str) -> tuple[int, str]:
        """Our command line, which sees the same GPUs."""
        done = self.machine.run(f"env {VARIABLES} vllm-supervisor {command}", check=False, timeout=90)
        return done.returncode, done.stdout + done.stderr

    def remove(self) -> None:
        """As before."""
        clean(self.service)
        self.machine.run(
            f"systemctl stop {self.service.unit}; systemctl disable --quiet {self.holder}; systemctl stop {self.holder}; "
            f"cd /run/systemd/system && rm -rf {PLACE} {self.service.unit}.service.d {self.holder}.service.d; "
            "systemctl reset-failed; systemctl daemon-reload",
            check=False,
            timeout=120,
        )


@pytest.fixture
def pair(service: Service) -> Iterator[Pair]:
    clean(service)
    made = Pair(service)
    yield made
    made.remove()


def test_the_weights_outlive_their_engine_and_nothing_takes_them_for_a_stranger(pair: Pair) -> None:
    machine, service = pair.machine, pair.service
    assert service.start().returncode == 0, service.journal() + machine.journal(pair.holder)
    assert machine.show(pair.holder, "ActiveState") == "active"
    ranks = pair.ranks()
    assert len(ranks) == 2
    pair.gpus(ranks)

    # The engine is killed: it comes back on GPUs that the weights fill, and they were not touched.
    machine.run("kill -KILL $(pgrep -f '[E]ngineCore')")
    service.wait("another start", lambda: service.show("NRestarts")["NRestarts"] == "1", 60)
    service.wait_state("active")
    assert (pair.ranks(), machine.show(pair.holder, "NRestarts")) == (ranks, "0")

    # A reload of either supervisor, and operations, leave them, too.
    machine.run(["systemctl", "reload", pair.holder])
    code, text = pair.said("restart kimi")
    assert code == 0, text
    code, text = pair.said("snapshot kimi -- true")
    assert code == 0, text
    assert "every GPU is free but for the weights that their own unit holds" in text
    assert pair.ranks() == ranks

    # The serving unit stops alone, and a start is not refused for what the weights take.
    service.stop()
    assert machine.show(pair.holder, "ActiveState") == "active"
    assert pair.ranks() == ranks
    code, text = pair.said("check kimi")
    assert "gpu-memory" not in text, text
    assert not [pid for pid in ranks if f"pid {pid}" in text]
    assert code == 0, text

    # Without its weights the engine goes on, and says that another start would wait for them.
    assert service.start().returncode == 0, service.journal()
    machine.run(["systemctl", "stop", "--no-block", pair.holder])
    service.wait("their end", lambda: not pair.ranks(), 30)
    pair.gpus([])
    service.wait("the unit's end", lambda: machine.show(pair.holder, "ActiveState") == "inactive", 60)
    assert machine.show("kimi", "ActiveState") == "active"
    assert 'vllm_supervisor_weights_held{part="engine"} 0.0' in service.get("/metrics")[1]
    assert "kimi-weights is not running" in pair.said("check kimi")[1]
    service.stop()
    assert service.left_over() == ""


def test_a_template_holds_the_weights_of_any_other_instance(service: Service) -> None:
    two = Service(service.machine, "two", 8001, 9478)
    pair = Pair(two)
    try:
        assert two.start().returncode == 0, two.journal() + two.machine.journal(pair.holder)
        ranks = pair.ranks()
        assert len(ranks) == 2
        pair.gpus(ranks)
        assert two.machine.run(["systemctl", "reload", pair.holder], check=False).returncode == 0
        assert pair.said("status two-weights")[0] == 0
        assert 'vllm_supervisor_weights_held{part="engine"} 1.0' in two.get("/metrics")[1]
        two.stop()
        assert pair.ranks() == ranks
        code, text = pair.said("check two")
        assert (code, "gpu-memory" in text) == (0, False), text
        two.machine.run(["systemctl", "stop", pair.holder])
        assert pair.ranks() == []
    finally:
        pair.remove()
        two.machine.run(f"rm -rf {two.config} {two.state} {two.state}-weights", check=False)
