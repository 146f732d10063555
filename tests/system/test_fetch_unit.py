"""kimi-fetch.service under real systemd, with a hub on loopback: nothing waits for it, and it completes the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process.fakes import write_model
from system.service import FAKE, SCRIPT, Service

ROOT = Path(__file__).parents[2]
MODEL = "/shared/kimi-k2.5-nvfp4"
SHARD = f"{MODEL}/model.safetensors"
PORT = 8123
HUB = f"""
import sys, threading
from pathlib import Path
sys.path.insert(0, "/srv/hub")
from hub_server import HubServer
files = {{path.name: path.read_bytes() for path in Path("/srv/hub/files").iterdir()}}
hub = HubServer(files, repo="nvidia/Kimi-K2.5-NVFP4", token="hf_secret", port={PORT})
hub.fault("model.safetensors").stalls = int(sys.argv[1])
with hub:
    threading.Event().wait()
"""
pytestmark = pytest.mark.timeout(300)


class Model:
    """kimi on the fake engine with a model that is still at the hub."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.machine = service, service.machine
        self.files = sorted(path.name for path in write_model(folder).iterdir())
        for name in self.files:
            self.machine.put(folder / name, f"/srv/hub/files/{name}")
        self.machine.put(ROOT / "tests/lab/hub_server.py", "/srv/hub/hub_server.py")
        self.machine.put(HUB, "/srv/hub/serve.py")
        self.machine.put("hf_secret\n", "/etc/credstore/kimi.hub-token", 0o600)
        self.machine.put(
            f"[Service]\nEnvironment=HF_ENDPOINT=http://127.0.0.1:{PORT}\n",
            "/run/systemd/system/kimi-fetch.service.d/hub.conf",
        )
        self.machine.put("{}", SCRIPT)
        command = ["/usr/bin/python3", FAKE, "serve"]
        service.configure(
            {"command": command, "model": MODEL, "env": {"FAKE_ENGINE": SCRIPT}}, smoke={"on_start": "off"}
        )
        self.machine.run(f"install -d -o vllm -g vllm {MODEL} && systemctl daemon-reload")
        self.machine.run("systemctl enable --quiet kimi kimi-fetch")

    def hub(self, stalls: int = 0) -> None:
        """The hub runs, anew; so many bodies of the shard end in the middle and in silence."""
        self.no_hub()
        command = f"/usr/bin/python3 /srv/hub/serve.py {stalls}"
        self.machine.run(f"systemd-run --quiet --collect --unit hub {command}")
        self.machine.wait(f"curl -s -o /dev/null http://127.0.0.1:{PORT}/", 30, "hub")

    def no_hub(self) -> None:
        """Nobody answers."""
        self.machine.run("systemctl stop hub", check=False)

    def fetch(self) -> str:
        """One call of the unit to its end: its result."""
        self.machine.run("systemctl start kimi-fetch")
        self.machine.wait("! systemctl -q is-active kimi-fetch", 60, "kimi-fetch")
        return self.machine.show("kimi-fetch", "Result")

    def remove(self) -> None:
        """As before."""
        self.machine.run(
            "systemctl disable --quiet kimi kimi-fetch; systemctl stop kimi kimi-fetch hub; systemctl reset-failed; "
            f"rm -rf /srv/hub {MODEL} /run/systemd/system/kimi-fetch.service.d /etc/credstore/kimi.hub-token "
            "/run/vllm-supervisor/kimi-fetched; systemctl daemon-reload",
            check=False,
            timeout=120,
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
    model.hub(stalls=1000)
    refused = service.start()
    assert refused.returncode != 0
    assert machine.show("kimi", "ExecMainStatus") == "78", service.journal()
    machine.run("systemctl start multi-user.target")
    machine.wait('[ -z "$(systemctl list-jobs --no-legend)" ]', 60)
    assert machine.show("kimi-fetch", "ActiveState") == "active", machine.journal("kimi-fetch")

    # The hub recovers: the download goes on, its token is the credential, and what had failed for want of it is started.
    model.hub()
    service.wait_state("active", timeout=120)
    assert machine.run(f"stat -c %U {SHARD}").stdout.strip() == "vllm"
    machine.wait("! systemctl -q is-active kimi-fetch", 60, "kimi-fetch")
    assert "is whole: nvidia/Kimi-K2.5-NVFP4" in machine.journal("kimi-fetch")
    for name in model.files:
        machine.run(["cmp", f"/srv/hub/files/{name}", f"{MODEL}/{name}"])
    assert "hf_secret" not in machine.journal("kimi-fetch", 500)

    # Stopped on purpose, kimi stays so; without the hub sizes alone are looked at: a byte that changed is not seen.
    service.stop()
    model.no_hub()
    machine.run(f"printf x | dd of={SHARD} bs=1 seek=9000 conv=notrunc status=none")
    assert model.fetch() == "success"
    assert f"all {len(model.files)} files have the right size" in machine.journal("kimi-fetch", 20)
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
