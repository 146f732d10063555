"""Writes units/kimi.service, units/vllm@.service and units/kimi-fetch.service from their templates.

Run by `make units`; the results are committed, and a test compares them. Standard library only; the exit codes come
from the package's own enum, so that a new code cannot be forgotten.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "supervisor"))

from vllm_supervisor.core.exits import EXEC_FAILURES, NO_RESTART, NOPERM, ExitCode

RELOAD = """# Returns when the reload is done, and fails when it is refused.
ExecReload=/usr/local/bin/vllm-supervisor reload @INSTANCE@
"""
SERVES = {"WEIGHTS": "", "RELOAD": RELOAD, "OWN": "@INSTANCE@", "WANTED": "multi-user.target"}
HOLDS = """# Optional, with weights.held = true: `systemctl enable NAME` lets it be started before the engine, and it stays when
# that ends. vLLM's `preload` in this unit was not run on CUDA so far.
"""
DIRECTORY = Path(__file__).resolve().parents[2] / "units"
MODEL = "/shared/kimi-k2.5-nvfp4"
FETCH = "kimi-fetch.service"
UNITS = {
    "kimi.service": {
        "NOTE": "Made from unit.template by `make units`; local changes belong into `systemctl edit kimi`.",
        "DESCRIPTION": "Kimi K2.5 served by vLLM",
        "INSTANCE": "kimi",
        "MOUNTS": f"/opt/vllm {MODEL}",
        "EXTRA": "# The same instance under its other name would fight for the same GPUs and directories.\nConflicts=vllm@kimi.service\n",
        **SERVES,
    },
    "vllm@.service": {
        "NOTE": "Made from unit.template by `make units`; local changes belong into `systemctl edit vllm@NAME`,\n"
        "# above all RequiresMountsFor= with the path of the model.",
        "DESCRIPTION": "vLLM instance %i",
        "INSTANCE": "%i",
        "MOUNTS": "/opt/vllm",
        "EXTRA": "",
        **SERVES,
    },
    "kimi-weights.service": {
        "NOTE": "Made from unit.template by `make units`; local changes belong into `systemctl edit kimi-weights`.",
        "DESCRIPTION": "Weights of kimi, held on the GPUs",
        "INSTANCE": "kimi",
        "MOUNTS": f"/opt/vllm {MODEL}",
        "EXTRA": "# The same weights under their other name would take the same GPUs a second time.\n"
        "Conflicts=vllm-weights@kimi.service\n"
        f"{HOLDS.replace('NAME', 'kimi-weights')}Before=kimi.service\n",
        "WEIGHTS": " --weights",
        "RELOAD": RELOAD.replace("@INSTANCE@", "@OWN@"),
        "OWN": "kimi-weights",
        "WANTED": "kimi.service",
    },
    "vllm-weights@.service": {
        "NOTE": "Made from unit.template by `make units`; local changes belong into `systemctl edit vllm-weights@NAME`,\n"
        "# above all RequiresMountsFor= with the path of the model.",
        "DESCRIPTION": "Weights of vLLM instance %i, held on the GPUs",
        "INSTANCE": "%i",
        "MOUNTS": "/opt/vllm",
        "EXTRA": f"{HOLDS.replace('NAME', 'vllm-weights@NAME')}Before=vllm@%i.service\n",
        "WEIGHTS": " --weights",
        "RELOAD": RELOAD.replace("@INSTANCE@", "@OWN@"),
        "OWN": "%i-weights",
        "WANTED": "vllm@%i.service",
    },
    FETCH: {
        "NOTE": "Made from fetch.template by `make units`; local changes belong into `systemctl edit kimi-fetch`.",
        "INSTANCE": "kimi",
        "MODEL": MODEL,
        "REPO": "nvidia/Kimi-K2.5-NVFP4",
    },
}

FETCH_FINAL = {1, NOPERM} | {int(code) for code in ExitCode if code not in {ExitCode.OK, ExitCode.TRANSIENT}}
"""What `fetch` ends with when another call cannot help; 1 is a directory that is not whole and has no hub."""


def render(name: str) -> str:
    """The text of one unit file."""
    template = "fetch.template" if name == FETCH else "unit.template"
    text = (DIRECTORY / template).read_text(encoding="utf-8")
    codes = FETCH_FINAL | EXEC_FAILURES if name == FETCH else NO_RESTART
    values = {**UNITS[name], "NO_RESTART": " ".join(map(str, sorted(codes)))}
    # The instance last: it stands in other values, too.
    for key, value in sorted(values.items(), key=lambda item: item[0] == "INSTANCE"):
        text = text.replace(f"@{key}@", value)
    return text


def main() -> int:
    """Writes all of them."""
    for name in UNITS:
        (DIRECTORY / name).write_text(render(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
