"""kimi-fetch.service under real systemd, with a hub on loopback: nothing waits for it, and it completes the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process.fakes import write_model
from system.hub import TOKEN, Hub
from system.service import FAKE, SCRIPT, Service

MODEL = "/shared/kimi-k2.5-nvfp4"
SHARD = f"{MODEL}/model.safetensors"
pytestmark = pytest.mark.timeout(300)


class Model:
    """kimi on the fake engine with a model that is still at the hub."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.machine = service, service.machine
        self.at = Hub(self.machine, write_model(folder))
        self.machine.put(f"{TOKEN}\n", "/etc/credstore/kimi.hub-token", 0o600)
        self.machine.put("{}", SCRIPT)
        command = ["/usr/bin/python3", FAKE, "serve"]
        service.configure(
            {"command": command, "model": MODEL, "env": {"FAKE_ENGINE": SCRIPT}}, smoke={"on_start": "off"}
        )
        self.machine.run(f"install -d -o vllm -g vllm {MODEL}")
        self.machine.run("systemctl enable --quiet kimi kimi-fetch")

    def fetch(self) -> str:
        """One call of the unit to its end: its result."""
        self.machine.run("systemctl start kimi-fetch")
        self.machine.wait("! systemctl -q is-active kimi-fetch", 60, "kimi-fetch")
        return self.machine.show("kimi-fetch", "Result")

    def remove(self) -> None:
        """As before."""
        self.at.remove()
        self.machine.run(
            f"systemctl disable --quiet kimi kimi-fetch; systemctl stop kimi; rm -rf {MODEL}", check=False, timeout=120
        )


@pytest.fixture
def model(service: Service, tmp_path: Path) -> Iterator[Model]:
    made = Model(service, tmp_path)
    yield made
    made.remove()


def test_nothing_waits_for_it_and_kimi_comes_with_the_model(model: Model) -> None:
    machine, service = model.machine, model.service
    assert "kimi-fetch.service" in machine.show("kimi", "Wants").split()
    assert "kimi.service" not in (machine.show("kimi-fetch", "Before") + machine.show("kimi-fetch", "After")).split()

    # The shard does not arrive for now: kimi refuses to start without it, and so long as that takes, nothing is held up.
    model.at.serve(stalls=1000)
    refused = service.start()
    assert refused.returncode != 0
    assert machine.show("kimi", "ExecMainStatus") == "78", service.journal()
    machine.run("systemctl start multi-user.target")
    machine.wait('[ -z "$(systemctl list-jobs --no-legend)" ]', 60)
    assert machine.show("kimi-fetch", "ActiveState") == "active", machine.journal("kimi-fetch")

    # The hub recovers: the download goes on, its token is the credential, and what had failed for want of it is started.
    model.at.serve()
    service.wait_state("active", timeout=120)
    assert machine.run(f"stat -c %U {SHARD}").stdout.strip() == "vllm"
    machine.wait("! systemctl -q is-active kimi-fetch", 60, "kimi-fetch")
    assert "is whole: nvidia/Kimi-K2.5-NVFP4" in machine.journal("kimi-fetch")
    for name in model.at.files:
        machine.run(["cmp", f"/srv/hub/files/{name}", f"{MODEL}/{name}"])
    assert "hf_secret" not in machine.journal("kimi-fetch", 500)

    # Stopped on purpose, kimi stays so; without the hub sizes alone are looked at: a byte that changed is not seen.
    service.stop()
    model.at.stop()
    machine.run(f"printf x | dd of={SHARD} bs=1 seek=9000 conv=notrunc status=none")
    assert model.fetch() == "success"
    assert f"all {len(model.at.files)} files have the right size" in machine.journal("kimi-fetch", 20)
    assert machine.show("kimi", "ActiveState") == "inactive"
    found = machine.run(
        f"vllm-supervisor fetch nvidia/Kimi-K2.5-NVFP4 --to {MODEL} --verify --offline --rate 100MiB",
        user="vllm",
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, "damaged: model.safetensors\n")

    # A hole is said, and only this unit fails of it.
    machine.run(f"truncate -s 1000 {SHARD}")
    assert model.fetch() == "exit-code"
    assert machine.show("kimi-fetch", "ExecMainStatus") == "1"
    assert "wrong size: model.safetensors" in machine.journal("kimi-fetch", 20)
    assert machine.show("kimi", "ActiveState") == "inactive"
