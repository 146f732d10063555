"""A hub on a machine's loopback, in a unit of its own."""

from __future__ import annotations

from pathlib import Path

from lab.machine import Machine

ROOT = Path(__file__).parents[2]
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
REPO = "nvidia/Kimi-K2.5-NVFP4"
TOKEN = "hf_secret"
SERVE = f"""
import sys, threading
from pathlib import Path
sys.path.insert(0, "/srv/hub")
from hub_server import HubServer
files = {{path.name: path.read_bytes() for path in Path("/srv/hub/files").iterdir()}}
hub = HubServer(files, repo="{REPO}", token="{TOKEN}", port={PORT})
hub.fault("model.safetensors").stalls = int(sys.argv[1])
with hub:
    threading.Event().wait()
"""


class Hub:
    """Serves the files of a folder as the model that kimi-fetch wants.

    Attributes:
        files: Their names.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.files = sorted(path.name for path in folder.iterdir())
        for name in self.files:
            machine.put(folder / name, f"/srv/hub/files/{name}")
        machine.put(ROOT / "tests/lab/hub_server.py", "/srv/hub/hub_server.py")
        machine.put(SERVE, "/srv/hub/serve.py")
        drop_in = f"[Service]\nEnvironment=HF_ENDPOINT={URL}\n"
        machine.put(drop_in, "/run/systemd/system/kimi-fetch.service.d/hub.conf")
        machine.run("systemctl daemon-reload")

    def serve(self, stalls: int = 0) -> None:
        """It runs, anew; so many bodies of the shard end in the middle and in silence."""
        self.stop()
        self.machine.run(f"systemd-run --quiet --collect --unit hub /usr/bin/python3 /srv/hub/serve.py {stalls}")
        self.machine.wait(f"curl -s -o /dev/null {URL}/", 30, "hub")

    def stop(self) -> None:
        """Nobody answers."""
        self.machine.run("systemctl stop hub", check=False)

    def remove(self) -> None:
        """As before."""
        self.machine.run(
            "systemctl stop kimi-fetch hub; systemctl reset-failed; rm -rf /srv/hub "
            "/run/systemd/system/kimi-fetch.service.d /etc/credstore/kimi.hub-token /run/vllm-supervisor/kimi-fetched; "
            "systemctl daemon-reload",
            check=False,
            timeout=120,
        )
