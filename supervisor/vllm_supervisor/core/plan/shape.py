"""The architecture as config.json gives it, reduced to what memory depends on.

Multimodal models keep the language model's keys in a nested object (`text_config` and relatives);
a bare model has them at the top. Both end in the same `Shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_supervisor.core.checkpoint import CheckpointError

from . import layers as layer_rules

_NESTED = ("text_config", "language_config", "llm_config", "language_model", "thinker_config")
_VISION = ("vision_config", "visual", "vit_config")
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# The engine multiplies the context by rope scaling's factor except for these (config/model.py of 0.32).
_ROPE_ALREADY_SCALED = {
    "su",
    "longrope",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "deepseek_llama_scaling",
    "mrope",
    "default",
    "proportional",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What memory depends on.

    Attributes:
        architecture: The first of `architectures`, or the model type.
        model_type: The language model's `model_type`.
        layers: Decoder layers that are loaded (draft layers are not among them).
        hidden: Hidden size.
        heads: Attention heads.
        kv_heads: Key and value heads; equal to `heads` without grouping.
        head_dim: Size of one key head.
        v_head_dim: Size of one value head.
        kv_lora_rank: Latent rank of multi-head latent attention (MLA); 0 without.
        rope_dim: The part of the key beside the latent (MLA); 0 without.
        indexer_dim: Head size of the sparse indexer's own cache (DeepSeek V3.2); 0 without.
        windows: For each layer: None for full attention, n for a sliding window of n tokens, 0 for
            a layer without a cache that grows (linear attention, Mamba).
        vocab: Vocabulary size.
        intermediate: Width of a dense MLP.
        experts: Routed experts of a layer; 0 for a dense model.
        active_experts: Experts of one token.
        moe_intermediate: Width of a routed expert.
        context: The longest context that the model was made for.
        kv_scheme: `fp8` when the checkpoint asks for such a cache, else empty.
        quantization: The checkpoint's quantisation method, empty without.
        block_n: Width of a block of block-wise FP8; 0 without.
        vision_heads: Attention heads of the vision tower; 0 without.
        tied: The output embedding is the input embedding.
    """

    architecture: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    rope_dim: int
    indexer_dim: int
    windows: tuple[int | None, ...]
    vocab: int
    intermediate: int
    experts: int
    active_experts: int
    moe_intermediate: int
    context: int
    kv_scheme: str
    quantization: str
    block_n: int
    vision_heads: int
    tied: bool

    @property
    def is_mla(self) -> bool:
        """Whether attention keeps one latent a token instead of keys and values a head."""
        return self.kv_lora_rank > 0


def read_shape(config: Mapping[str, Any], quant: Mapping[str, Any] | None = None) -> Shape:
    """The shape out of config.json and, where there is one, hf_quant_config.json.

    Raises:
        CheckpointError: A key that everything depends on is missing or no number.
    """
    text = text_config(config)
    layers = _need(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = _need(text, "hidden_size", "n_embd", "d_model")
    heads = _need(text, "num_attention_heads", "n_head", "n_heads")
    rank, rope = _int(text, "kv_lora_rank"), _int(text, "qk_rope_head_dim")
    mla = rank > 0 and rope > 0
    head_dim = _int(text, "head_dim", "hidden_size_per_head") or hidden // heads
    nope = _int(text, "qk_nope_head_dim")
    architectures = config.get("architectures") or text.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else text.get("model_type")
    quantization = layer_rules.quantization(config, text, quant)
    return Shape(
        architecture=str(named or "unknown"),
        model_type=str(text.get("model_type") or config.get("model_type") or ""),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_int(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num") or heads,
        head_dim=rope + nope if mla else head_dim,
        v_head_dim=_int(text, "v_head_dim") or head_dim,
        kv_lora_rank=rank if mla else 0,
        rope_dim=rope if mla else 0,
        indexer_dim=_int(text, "index_head_dim") if _int(text, "index_topk") else 0,
        windows=layer_rules.windows(text, layers),
        vocab=_int(text, "vocab_size") or _int(config, "vocab_size"),
        intermediate=_int(text, "intermediate_size", "ffn_hidden_size", "n_inner") or 4 * hidden,
        experts=_int(text, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
        active_experts=_int(text, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k"),
        moe_intermediate=_int(text, "moe_intermediate_size") or _int(text, "intermediate_size"),
        context=_context(text),
        kv_scheme=layer_rules.kv_scheme(config, text, quant),
        quantization=quantization.method,
        block_n=quantization.block_n,
        vision_heads=_vision_heads(config),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with the language model's keys: a nested one when it has them, else the top."""
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, dict):
            inner = text_config(nested)
            if any(name in inner for name in ("num_hidden_layers", "n_layer", "hidden_size")):
                return inner
    return config


def _int(values: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < (1 << 40):
            return value
    return 0


def _need(values: Mapping[str, Any], *keys: str) -> int:
    found = _int(values, *keys)
    if not found or found > (1 << 24):
        seen = next((repr(values[key])[:40] for key in keys if key in values), "")
        state = f"has {keys[0]} = {seen}, which is no sensible number" if seen else f"has no {keys[0]}"
        raise CheckpointError("checkpoint-mismatch", f"config.json {state}, so no plan can be made for this model")
    return found


def _context(text: Mapping[str, Any]) -> int:
    lengths = [_int(text, key) for key in _CONTEXT_KEYS]
    context = min((length for length in lengths if length), default=2048)
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if isinstance(rope, dict) and not str(text.get("model_type", "")).startswith("gemma3"):
        kind = rope.get("rope_type", rope.get("type"))
        factor = rope.get("factor")
        scaled = kind is None or kind in _ROPE_ALREADY_SCALED
        if not scaled and isinstance(factor, int | float) and 1 <= factor <= (1 << 20):
            context = int(context * factor)
    return context


def _vision_heads(config: Mapping[str, Any]) -> int:
    for key in _VISION:
        nested = config.get(key)
        if isinstance(nested, dict):
            return _int(nested, "num_attention_heads", "vt_num_attention_heads", "num_heads", "num_attention_head")
    return 0
