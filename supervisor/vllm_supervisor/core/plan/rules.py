"""Which tensors every GPU of a tensor-parallel group holds whole, and which are split.

Told by name, as the engine's model classes build their layers: what they declare replicated (the
down-projections of multi-head latent attention, routers, norms) is whole on every rank, everything
else of two dimensions is split over the ranks.
"""

from __future__ import annotations

import re
from enum import StrEnum

from .shape import Shape


class Share(StrEnum):
    """How a tensor spreads over the ranks."""

    WHOLE = "whole"
    SPLIT = "split"
    KV_HEADS = "kv-heads"
    FUSED_QKV = "fused-qkv"
    EXPERT = "expert"
    VISION = "vision"
    SKIP = "skip"


BEFORE = -1
"""Stage of what stands before the layers: input embedding, vision tower; on the first pipeline rank."""
AFTER = -2
"""Stage of what stands behind the layers: final norm, output embedding; on the last pipeline rank."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_VISION = re.compile(
    r"(?:^|\.)(?:vision_tower|visual|vision_model|vision_encoder|vit|image_encoder|audio_tower|audio_encoder|"
    r"speech_encoder|vision)\."
)
_PROJECTOR = re.compile(r"(?:^|\.)(?:mm_projector|multi_modal_projector|multimodal_projector|embed_vision|connector)\.")
_DRAFT = re.compile(r"(?:^|\.)(?:mtp|mtp_layers|nextn|eagle)\.")
_EXPERT = re.compile(r"(?:^|\.)experts\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|token_embedding)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.(?!.*\.(?:dense|weight_v))|^output\.weight$")
_WHOLE = re.compile(
    r"(?:^|\.)(?:q_a_proj|kv_a_proj_with_mqa|kv_a_proj|fused_qkv_a_proj|wq_a|wkv_a|indexer|router|"
    r"shared_expert_gate|(?:mlp|moe|ffn|feed_forward|block_sparse_moe)\.gate)\."
    r"|norm|(?:^|\.)(?:ln_\w+|wpe|position_embeddings)\.|\.rotary_emb\.|_scale_2$|\.input_scale$|\.g_idx$"
)
_KV = re.compile(r"(?:attn|attention)\.(?:k_proj|v_proj|wk|wv|kv_proj|key|value)\.")
_FUSED = re.compile(r"(?:attn|attention)\.(?:qkv_proj|Wqkv|query_key_value|c_attn|wqkv|qkv)\.")


def layer_of(name: str) -> int | None:
    """The decoder layer that a tensor's name carries, None when it is outside the layers."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def classify(name: str, dimensions: int, shape: Shape) -> tuple[int, Share]:
    """Where a tensor stands (a layer, `BEFORE` or `AFTER`) and how it is shared.

    Args:
        name: The tensor's name in the checkpoint.
        dimensions: How many dimensions it has; scalars and vectors (norms, biases, per-tensor
            scales) are small and taken as whole.
        shape: The model's architecture.
    """
    if _VISION.search(name):
        return BEFORE, Share.VISION if dimensions > 1 else Share.WHOLE
    if _PROJECTOR.search(name):
        return BEFORE, Share.WHOLE
    if _DRAFT.search(name):
        return AFTER, Share.SKIP
    layer = layer_of(name)
    if layer is None:
        return _outside(name, dimensions, shape)
    if layer >= shape.layers:
        # Multi-token-prediction layers follow the decoder's and are only loaded for speculation.
        return AFTER, Share.SKIP
    if _EXPERT.search(name):
        return layer, Share.EXPERT
    if dimensions <= 1 or _WHOLE.search(name):
        return layer, Share.WHOLE
    if _KV.search(name) and not shape.is_mla:
        return layer, Share.KV_HEADS
    if _FUSED.search(name):
        return layer, Share.FUSED_QKV
    return layer, Share.SPLIT


def _outside(name: str, dimensions: int, shape: Shape) -> tuple[int, Share]:
    if _EMBEDDING.search(name):
        return BEFORE, Share.SPLIT
    if _HEAD.search(name):
        return AFTER, Share.SKIP if shape.tied else Share.SPLIT
    if dimensions <= 1 or _WHOLE.search(name):
        return AFTER, Share.WHOLE
    return BEFORE, Share.SPLIT
