"""Whether weights are held that an engine could map: what the unit that holds them says, beside what the engine wants.

vLLM 0.32 compares checkpoint, architecture, parallel sizes, data type, quantisation, revision and its own version
(WeightCacheKey in model_executor/model_loader/weight_cache/protocol.py) and ends where one differs, after its imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .endpoint import Args
from .engineflags import canonical

COMPARED = {
    "tensor-parallel-size": "1",
    "pipeline-parallel-size": "1",
    "data-parallel-size": "1",
    "dtype": "auto",
    "quantization": "",
    "revision": "",
}
"""Options that decide what lies on the GPUs, with vLLM's defaults."""


@dataclass(frozen=True, slots=True)
class HeldSeen:
    """What is known of the unit that holds the weights.

    Attributes:
        name: The holder's name, which is its unit's where that is not a template's.
        running: Its supervisor lives.
        ready: It holds all of them.
        differing: What it holds otherwise than the engine wants it: `model`, `vllm`, or an option.
    """

    name: str
    running: bool = False
    ready: bool = False
    differing: tuple[str, ...] = ()


def wanted(program: str, model: str, args: Args) -> dict[str, str]:
    """What decides whether weights fit, by the settings of one side.

    Args:
        program: The engine's program, as a path without links.
        model: What is loaded, likewise.
        args: The engine's arguments.
    """
    found = {"vllm": program, "model": model, **COMPARED}
    for name, value in args.items():
        option = canonical(name)
        if option in COMPARED:
            found[option] = str(value)
    return found


def differing(ours: Mapping[str, str], theirs: Mapping[str, object]) -> tuple[str, ...]:
    """The names under which the two differ; what only one of them says is not compared."""
    return tuple(sorted(name for name, value in ours.items() if name in theirs and theirs[name] != value))
