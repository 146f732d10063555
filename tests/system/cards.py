"""GPUs of a fake NVML on a machine, seen by kimi, by the operation on it and by a command line."""

from __future__ import annotations

import json

from fake.gpus import FAKE_NVML
from system.operating import UNIT
from system.service import Service

PLACE = "/srv/cards"
VARIABLES = f"PYTHONPATH={PLACE}/nvml VSUP_FAKE_NVML={PLACE}/gpus.json"


class Cards:
    """Cards for kimi.

    Args:
        service: kimi; its drop-in is made here.
        count: So many cards, all alike and idle.
        units: Further units that see them; who names one removes its drop-in.
    """

    def __init__(self, service: Service, count: int = 2, units: tuple[str, ...] = ()) -> None:
        self.machine = service.machine
        self.state: list[dict[str, object]] = [{} for _ in range(count)]
        self.xids: list[list[int]] = []
        self.driver = "580.95.05"
        for source in FAKE_NVML.glob("*.py"):
            self.machine.put(source, f"{PLACE}/nvml/{source.name}")
        self.write()
        for unit in (f"{service.unit}.service", UNIT, *units):
            self.machine.put(f"[Service]\nEnvironment={VARIABLES}\n", f"/run/systemd/system/{unit}.d/cards.conf")
        self.machine.run("systemctl daemon-reload")

    def write(self, name: str = "gpus.json") -> None:
        """The file of all cards, replaced as a whole."""
        whole = {"gpus": self.state, "xid": self.xids, "version": self.driver}
        self.machine.put(json.dumps(whole), f"{PLACE}/{name}.new")
        self.machine.run(["mv", f"{PLACE}/{name}.new", f"{PLACE}/{name}"])

    def card(self, index: int, **changes: object) -> None:
        """Change one card."""
        self.state[index] |= changes
        self.write()
