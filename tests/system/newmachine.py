"""What a new machine has around it: a checkout, a registry of packages and a hub with the model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from system.books import Book
from system.cards import VARIABLES
from system.hub import TOKEN, URL, Hub
from system.operating import UNIT
from system.service import Service
from system.standin import WHEELS

ROOT = Path(__file__).parents[2]
MODEL = "/shared/kimi-k2.5-nvfp4"
PIP = "PIP_CONFIG_FILE=/srv/pip.conf"
EDITED = "/srv/edited.toml"


def registry(service: Service) -> None:
    """Let the pip of the machine's shells and operations find what lies in /srv/wheels, and nothing else."""
    service.machine.put(f"[global]\nno-index = true\nfind-links = {WHEELS}\n", "/srv/pip.conf")
    service.machine.put(f"[Service]\nEnvironment={PIP}\n", f"/run/systemd/system/{UNIT}.d/pip.conf")
    service.machine.run("systemctl daemon-reload")


class NewMachine:
    """The first hour by the runbook, up to the instance that answers; what is left of the book is `book`.

    Args:
        service: kimi; its configuration becomes what the operator edits it to.
        folder: For what is made on the way.
        model: What the hub serves.
    """

    def __init__(self, service: Service, folder: Path, model: Path) -> None:
        self.service, self.machine = service, service.machine
        self._wheels(folder)
        left_out = shutil.ignore_patterns(".*", "build", "tests", "__pycache__")
        shutil.copytree(ROOT, self.machine.root / "srv/checkout", ignore=left_out)
        self.machine.run(["mv", service.config, EDITED])
        self.hub = Hub(self.machine, model)
        shell = f"cd /srv/checkout; export {VARIABLES} {PIP} HF_ENDPOINT={URL} EDITOR='cp {EDITED}'"
        self.book = Book(service, "new-machine", shell)

    def _wheels(self, folder: Path) -> None:
        """What the installed daemon is made of."""
        runtime = ["-r", str(ROOT / "supervisor/runtime.lock"), "hatchling"]
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-input", "--disable-pip-version-check"]
        subprocess.run([*pip, *runtime, "-w", str(folder / "wheels")], check=True, timeout=240)
        shutil.copytree(folder / "wheels", self.machine.root / WHEELS.lstrip("/"), dirs_exist_ok=True)

    def first_hour(self, start_s: float = 120.0) -> None:
        """All blocks but the last; a start takes so many seconds at the most."""
        self.hub.serve()
        said = self.book.run(stdin=TOKEN, timeout=240)
        assert "installed /usr/local/bin/vllm-supervisor" in said
        assert "environment: vLLM 0.32.0 is in /opt/vllm-0.32.0" in said
        assert self.machine.run("stat -c '%U %a' /etc/credstore/kimi.hub-token").stdout == "root 600\n"
        self.book.run()
        self.machine.wait("! systemctl -q is-active kimi-fetch", 60, "kimi-fetch")
        assert self.machine.show("kimi-fetch", "Result") == "success", self.machine.journal("kimi-fetch")
        self.book.run()
        assert "right" in self.book.run(timeout=start_s)
        assert self.book.run().startswith("enabled\n")
        self.hub.stop()

    def undo(self) -> None:
        """The last block: nothing of it runs, or is started at the next boot."""
        self.book.run()
        assert self.machine.show("kimi", "ActiveState") == "inactive"
        assert self.book.left == []

    def remove(self) -> None:
        """No hub, no checkout, no model."""
        self.hub.remove()
        self.machine.run(f"systemctl disable kimi; rm -rf /srv/checkout {MODEL} {EDITED}", check=False)
