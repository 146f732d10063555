"""Writes units/kimi.service and units/vllm@.service from their one template.

Run by `make units`; both results are committed, and a test compares them. Standard library only; the exit codes come
from the package's own enum, so that a new code cannot be forgotten.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "supervisor"))

from vllm_supervisor.core.exits import NO_RESTART

DIRECTORY = Path(__file__).resolve().parents[2] / "units"
UNITS = {
    "kimi.service": {
        "NOTE": "Made from unit.template by `make units`; local changes belong into `systemctl edit kimi`.",
        "DESCRIPTION": "Kimi K2.5 served by vLLM",
        "INSTANCE": "kimi",
        "MOUNTS": "/opt/vllm /shared/kimi-k2.5-nvfp4",
        "EXTRA": "# The same instance under its other name would fight for the same GPUs and directories.\nConflicts=vllm@kimi.service\n",
    },
    "vllm@.service": {
        "NOTE": "Made from unit.template by `make units`; local changes belong into `systemctl edit vllm@NAME`,\n"
        "# above all RequiresMountsFor= with the path of the model.",
        "DESCRIPTION": "vLLM instance %i",
        "INSTANCE": "%i",
        "MOUNTS": "/opt/vllm",
        "EXTRA": "",
    },
}


def render(name: str) -> str:
    """The text of one unit file."""
    text = (DIRECTORY / "unit.template").read_text(encoding="utf-8")
    values = {**UNITS[name], "NO_RESTART": " ".join(map(str, sorted(NO_RESTART)))}
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def main() -> int:
    """Writes both files."""
    for name in UNITS:
        (DIRECTORY / name).write_text(render(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
