"""Which layers keep what in the KV cache, and how the checkpoint says that it is quantised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NO_CACHE = {"linear_attention", "mamba", "mamba2", "linear", "recurrent", "conv"}
_SLIDING = {"sliding_attention", "sliding_window", "local", "local_attention", "sliding"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights are quantised: the method's name, and the block width of block-wise FP8."""

    method: str = ""
    block_n: int = 0


def windows(text: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """For each layer None (full attention), a window in tokens, or 0 (no cache that grows).

    Explicit `layer_types` count first (GPT-OSS, Gemma 3, Qwen3-Next); without them a plain
    `sliding_window` is every layer's (Mistral 7B v0.1), unless `use_sliding_window` is false (Qwen2)
    or `max_window_layers` leaves layers out.
    """
    window = _number(text.get("sliding_window"))
    chunk = _number(text.get("attention_chunk_size"))
    types = text.get("layer_types")
    if isinstance(types, list) and len(types) >= layers:
        return tuple(_window_of(str(kind), window, chunk) for kind in types[:layers])
    if text.get("use_sliding_window") is False or not window:
        return (None,) * layers
    pattern = _number(text.get("sliding_window_pattern"))
    if pattern:
        # Every pattern-th layer is a full one (Gemma 2 and 3 without layer_types).
        return tuple(None if (layer + 1) % pattern == 0 else window for layer in range(layers))
    if str(text.get("model_type", "")).startswith("gemma2"):
        return tuple(window if layer % 2 == 0 else None for layer in range(layers))
    full_below = text.get("max_window_layers")
    if text.get("use_sliding_window") is True and isinstance(full_below, int):
        return tuple(None if layer < full_below else window for layer in range(layers))
    return (window,) * layers


def quantization(config: Mapping[str, Any], text: Mapping[str, Any], quant: Mapping[str, Any] | None) -> Quantization:
    """The method out of `quantization_config`, or of ModelOpt's hf_quant_config.json."""
    for values in (config, text):
        section = values.get("quantization_config", values.get("compression_config"))
        if isinstance(section, dict):
            method = str(section.get("quant_method") or "")
            block = section.get("weight_block_size")
            block_n = block[0] if isinstance(block, list) and block and _number(block[0]) else 0
            algorithm = section.get("quant_algo")
            return Quantization(f"{method}:{algorithm}" if algorithm else method, block_n)
    section = (quant or {}).get("quantization")
    if isinstance(section, dict) and section.get("quant_algo"):
        return Quantization(f"modelopt:{section['quant_algo']}")
    return Quantization()


def kv_scheme(config: Mapping[str, Any], text: Mapping[str, Any], quant: Mapping[str, Any] | None) -> str:
    """`fp8` when the checkpoint asks for an FP8 KV cache, wherever that stands; empty otherwise."""
    for values in (config, text, quant or {}):
        for section in (values.get("quantization_config"), values.get("quantization"), values):
            if not isinstance(section, dict):
                continue
            algorithm = section.get("kv_cache_quant_algo")
            if isinstance(algorithm, str) and "FP8" in algorithm.upper():
                return "fp8"
            scheme = section.get("kv_cache_scheme")
            if isinstance(scheme, dict) and scheme.get("num_bits", 8) == 8:
                return "fp8"
            if isinstance(scheme, str) and "fp8" in scheme.lower():
                return "fp8"
    return ""


def _window_of(kind: str, window: int, chunk: int) -> int | None:
    if kind in _NO_CACHE:
        return 0
    if kind in _SLIDING and window:
        return window
    if kind == "chunked_attention" and chunk:
        return chunk
    return None


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
