"""The tables of README.md, short forms of the reference, written between their markers.

A marker is a pair of comments, `<!-- NAME -->` and `<!-- /NAME -->`; what stands between them is generated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vllm_supervisor.config import reference
from vllm_supervisor.core.exits import MEANINGS, RESTARTED
from vllm_supervisor.core.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_METRICS = (
    "phase",
    "ready",
    "load_progress_ratio",
    "load_eta_seconds",
    "starts_total",
    "failures_total",
    "generation_tokens_per_second",
    "prompt_tokens_per_second",
    "liveness_last_proof_seconds",
    "gpu_memory_used_bytes",
    "gpu_engine_bytes",
    "gpu_up",
)
"""What a first dashboard has; the reference has all."""


def settings() -> str:
    """Each table of the configuration with its keys."""
    lines = ["| table | what it is about | keys |", "|---|---|---|"]
    for section, about in reference.sections():
        keys = " ".join(f"`{row.name}`" for row in reference.rows(section))
        lines.append(f"| `[{section}]` | {about} | {keys} |")
    return "\n".join(lines)


def exit_codes() -> str:
    """What the daemon ends with, and what systemd does then."""
    lines = ["| code | meaning | systemd |", "|---|---|---|"]
    lines += [
        f"| {int(code)} | {meaning} | {'starts again' if code in RESTARTED else 'does not start again'} |"
        for code, meaning in MEANINGS.items()
    ]
    return "\n".join(lines)


def metrics() -> str:
    """The metrics to begin with."""
    lines = ["| name | labels | meaning |", "|---|---|---|"]
    for name in FIRST_METRICS:
        metric = METRICS[name]
        labels = " ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.full_name}` | {labels} | {metric.help} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {"settings": settings, "exit codes": exit_codes, "metrics": metrics}


def filled(text: str) -> str:
    """README with its tables as the declarations are now.

    Raises:
        ValueError: A table has no place in it.
    """
    for name, make in TABLES.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, found = place.subn(lambda match, make=make: f"{match[1]}\n{make()}\n\n{match[2]}", text)
        if found != 1:
            raise ValueError(f"README has {found} places for the table of {name}")
    return text
