"""What can be learnt of every instance of this machine, with the rights that the caller has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters.neighbours import is_enabled, read_claims
from vllm_supervisor.core.neighbours import listed
from vllm_supervisor.core.overview import last_failure

from .ask import AskError, ask, past
from .locate import SYSTEM_CONFIG, locate, names, runtime_roots
from .neighbours import configured

if TYPE_CHECKING:
    from vllm_supervisor.core.neighbours import Needs

LOOKED_BACK = 50


def roster(config_dir: Path = SYSTEM_CONFIG) -> list[dict[str, Any]]:
    """One row an instance, as `core.roster` takes them."""
    files = configured(config_dir)
    claims = {claim.needs.name: claim for claim in read_claims(runtime_roots(os.environ))}
    rows = []
    for name in sorted({*names(config_dir=config_dir), *claims}):
        needs = claims[name].needs if name in claims else files.get(name)
        row: dict[str, Any] = {"name": name, "enabled": is_enabled(name), "gpus": _gpus(needs)}
        try:
            place = locate(name, config_dir=config_dir)
            status = ask(place)
            row["status"] = status if status["running"] else None
            row["problems"] = status.get("problems", [])
            row["failure"] = _plain(last_failure(past(place, LOOKED_BACK)))
        except (AskError, LookupError, OSError):
            # What everybody may know is in the claim.
            row["status"] = dict(claims[name].page) if name in claims else None
            row["closed"] = True
        rows.append(row)
    return rows


def _gpus(needs: Needs | None) -> str:
    if needs is None:
        return "?"
    if not needs.count:
        return "none"
    if needs.gpus is None:
        return f"first {needs.count}"
    words = needs.gpus[: needs.count]
    if all(word.isdigit() for word in words):
        return listed([int(word) for word in words]).partition(" ")[2]
    return ", ".join(word[:12] for word in words)


def _plain(failure: Any) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {name: failure.get(name) for name in ("reason", "sentence", "began_at", "ended_at", "exit_code")}
