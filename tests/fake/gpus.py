"""Fake GPUs for tests: a folder for PYTHONPATH and a file that describes the cards."""

from __future__ import annotations

import json
import os
from pathlib import Path

FAKE_NVML = Path(__file__).parents[1] / "lab" / "fake_nvml"


class FakeGpus:
    """Cards that the helper sees through the stand-in of NVML's binding."""

    def __init__(self, folder: Path, count: int = 8) -> None:
        self.path = folder / "gpus.json"
        self.state: dict = {"gpus": [{} for _ in range(count)]}
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """What the helper has to find in its environment."""
        path = os.pathsep.join(filter(None, (str(FAKE_NVML), os.environ.get("PYTHONPATH", ""))))
        return {**os.environ, "PYTHONPATH": path, "VSUP_FAKE_NVML": str(self.path)}

    def write(self, **changes: object) -> None:
        """Change the whole's keys, and make the cards as the state says."""
        self.state.update(changes)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.replace(self.path)

    def card(self, index: int, **changes: object) -> None:
        """Change one card."""
        self.state["gpus"][index].update(changes)
        self.write()
