"""What an overlay changes: the checkpoint's wish for an FP8 KV cache is taken out of its documents.

The engine reads that wish from hf_quant_config.json (`kv_cache_quant_algo`) and from config.json
(`kv_cache_scheme`), at whatever depth. Without it the cache has 16 bits, which every backend takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .checkpoint import parse_config
from .plan.engine import Version, fp8_cache_works
from .plan.shape import Shape

DOCUMENTS = ("config.json", "hf_quant_config.json")
"""The files that are rewritten where they carry one of `KEYS`; everything else is linked."""

KEYS = frozenset({"kv_cache_quant_algo", "kv_cache_scheme"})

MARKER = ".vllm-supervisor-overlay.json"
"""The file that tells an overlay of ours from any other directory."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the engine is started on an overlay, and why, in one sentence."""

    wanted: bool
    why: str


def rewritten(text: bytes, name: str) -> bytes | None:
    """A document without the keys; None when it has none of them and can be linked as it is.

    Raises:
        CheckpointError: The text is no JSON object.
    """
    document = parse_config(text, name)
    stripped, removed = _strip(document)
    if not removed:
        return None
    return (json.dumps(stripped, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def _strip(value: Any) -> tuple[Any, int]:
    if isinstance(value, dict):
        kept, removed = {}, 0
        for key, inner in value.items():
            if key in KEYS:
                removed += 1
                continue
            kept[key], below = _strip(inner)
            removed += below
        return kept, removed
    if isinstance(value, list):
        pairs = [_strip(inner) for inner in value]
        return [inner for inner, _ in pairs], sum(below for _, below in pairs)
    return value, 0


def marker(source: str, replaced: dict[str, str]) -> bytes:
    """The marker's content: where the links lead, and a digest of each document as it was."""
    return (json.dumps({"overlay_of": source, "replaced": replaced}, indent=2) + "\n").encode()


def marked_source(text: bytes) -> str | None:
    """The checkpoint that a marker names; None when it is no marker."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    source = document.get("overlay_of") if isinstance(document, dict) else None
    return source if isinstance(source, str) else None


def decide(
    setting: str, kv_cache_dtype: str, shape: Shape, version: Version | None, capability: tuple[int, int] | None
) -> Decision:
    """What `engine.overlay` means for this checkpoint, engine and card.

    Args:
        setting: `auto`, `off` or a path; a path asks for an overlay always.
        kv_cache_dtype: The engine's `--kv-cache-dtype`, `auto` when it is not given.
        shape: The model's architecture.
        version: The engine's release.
        capability: The cards' compute capability; None on a machine without GPUs.
    """
    if setting == "off":
        return Decision(wanted=False, why="overlays are switched off")
    if setting != "auto":
        return Decision(wanted=True, why="the configuration names an overlay")
    if not shape.kv_scheme:
        return Decision(wanted=False, why="the checkpoint asks for no FP8 KV cache")
    if kv_cache_dtype != "auto":
        return Decision(wanted=False, why=f"the KV cache's type is set to {kv_cache_dtype}")
    works = fp8_cache_works(shape, version, capability)
    if works:
        return Decision(wanted=False, why="this engine keeps an FP8 KV cache on these GPUs")
    if works is None:
        return Decision(
            wanted=True, why="whether engine and GPUs keep an FP8 KV cache is not known; 16 bits always work"
        )
    return Decision(wanted=True, why="this engine has no FP8 KV cache on these GPUs, so the cache gets 16 bits")
