"""What a configuration for a checkpoint should say, from its own documents and the machine's GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .plan.advice import suggested_length
from .plan.request import PlanEntry

KIMI_UTILIZATION = 0.95
"""What the deployment that this was built around needed for 131,072 tokens beside 71 GiB of weights."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """An argument for the engine.

    Attributes:
        why: One or two sentences for the file.
        active: False for what the operator should only know of.
    """

    name: str
    value: bool | int | float | str
    why: str
    active: bool = True


@dataclass(frozen=True, slots=True)
class Fit:
    """What a plan found for the machine that is here.

    Attributes:
        gpus: GPUs that are here.
        tensor_parallel: The size that was chosen.
        length: The longest context that fits with some room; 0 when nothing fits.
        utilization: The part of the memory that the plan counted with.
        reason: Why nothing fits; empty when it does.
    """

    gpus: int
    tensor_parallel: int
    length: int
    utilization: float
    reason: str = ""


def choose(entries: Sequence[PlanEntry], gpus: int, context: int) -> Fit | None:
    """The size to begin with: the smallest that holds the model's whole context, else the one that holds most.

    Args:
        entries: The plan of every size.
        gpus: GPUs that are here.
        context: The model's own context.
    """
    fitting = [entry for entry in entries if entry.fits]
    if not fitting:
        widest = max(entries, key=lambda entry: entry.tensor_parallel_size, default=None)
        if widest is None:
            return None
        reason = widest.reasons[0] if widest.reasons else "too little memory"
        return Fit(gpus, widest.tensor_parallel_size, 0, widest.gpu_memory_utilization, reason)
    whole = [entry for entry in fitting if entry.max_model_len >= context]
    chosen = (
        min(whole, key=lambda entry: entry.tensor_parallel_size)
        if whole
        else max(fitting, key=lambda entry: entry.max_model_len)
    )
    length = suggested_length(context, chosen.max_model_len)
    return Fit(gpus, chosen.tensor_parallel_size, length, chosen.gpu_memory_utilization)


def is_kimi(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is of the family that this was built around."""
    names = [config.get("model_type"), *_architectures(config)]
    return any(isinstance(name, str) and name.lower().startswith("kimi") for name in names)


def has_code(*documents: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint brings code of its own: `auto_map` in its config or its tokenizer's."""
    return any(bool(document.get("auto_map")) for document in documents if document is not None)


def arguments(config: Mapping[str, Any], *, context: int, code: bool, fit: Fit | None) -> list[Proposed]:
    """The arguments to begin with.

    Args:
        config: config.json.
        context: The model's own context; 0 when it is not known.
        code: Whether the checkpoint brings code.
        fit: The plan for this machine; None when no GPU was seen.
    """
    return [*_sizes(context, fit, kimi=is_kimi(config)), *_parsers(kimi=is_kimi(config)), _code(code=code)]


def _sizes(context: int, fit: Fit | None, *, kimi: bool) -> list[Proposed]:
    found = []
    if fit is None:
        why = "GPUs that share each layer. None was seen when this was written: `vllm-supervisor plan` says what fits."
        found.append(Proposed("tensor-parallel-size", 8 if kimi else 1, why))
    elif fit.reason:
        why = f"GPUs that share each layer. By the plan it does not fit on the {fit.gpus} here: {fit.reason}."
        found.append(Proposed("tensor-parallel-size", fit.tensor_parallel, why))
    else:
        why = f"GPUs that share each layer; {fit.gpus} were here when this was written."
        found.append(Proposed("tensor-parallel-size", fit.tensor_parallel, why))
    length, why = _length(context, fit, kimi=kimi)
    if length:
        found.append(Proposed("max-model-len", length, why))
    share = fit.utilization if fit is not None and not kimi else KIMI_UTILIZATION
    why = "Part of a GPU's memory that the engine may take; what the weights leave of it is the KV cache."
    found.append(Proposed("gpu-memory-utilization", share, why, active=kimi or fit is not None))
    return found


def _length(context: int, fit: Fit | None, *, kimi: bool) -> tuple[int, str]:
    if fit is not None and fit.length:
        if fit.length >= context:
            return context, "Longest request in tokens: the model's own context."
        return fit.length, f"Longest request in tokens: what fits here; the model's own context is {context}."
    if kimi and context > 131072:
        return 131072, f"Longest request in tokens; the model's own context is {context}."
    return context, "Longest request in tokens: the model's own context; the plan says whether it fits."


def _parsers(*, kimi: bool) -> list[Proposed]:
    name = "kimi_k2"
    hint = "" if kimi else " The engine's --help lists the names."
    return [
        Proposed(
            "reasoning-parser", name, f"Puts thoughts into `reasoning` and the answer into `content`.{hint}", kimi
        ),
        Proposed("tool-call-parser", name, f"Reads the model's own notation of tool calls.{hint}", kimi),
        Proposed("enable-auto-tool-choice", value=True, why="Without it the parser above is never used.", active=kimi),
    ]


def _code(*, code: bool) -> Proposed:
    if code:
        why = (
            "This checkpoint brings Python code of its own (auto_map), which runs in the engine as the service's user: "
            "keep this only when you trust where it came from."
        )
    else:
        why = "This checkpoint brings no code of its own; leave it off."
    return Proposed("trust-remote-code", value=True, why=why, active=code)


def _architectures(config: Mapping[str, Any]) -> list[Any]:
    found = config.get("architectures")
    return found if isinstance(found, list) else []
