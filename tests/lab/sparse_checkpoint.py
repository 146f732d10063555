"""A checkpoint of Kimi-K2.5-NVFP4's true shape whose data are holes.

119 shards, about 550 GiB apparent, 277,000 tensors; some 70 MB on disk, written in seconds. Headers,
index and documents are real, so that everything that reads no tensor data can be tried at true
scale.

    python tests/lab/sparse_checkpoint.py DIRECTORY
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

LAYERS, HIDDEN, HEADS, EXPERTS, WIDTH, DENSE, VOCAB = 61, 7168, 64, 384, 2048, 18432, 163840
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 1536, 512, 128, 64, 128
VISION_LAYERS, VISION_HIDDEN, VISION_WIDTH = 27, 1152, 4304
SHARDS = 119
BITS = {"BF16": 16, "U8": 8, "F8_E4M3": 8, "F32": 32}

CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "kv_lora_rank": KV_RANK,
        "q_lora_rank": Q_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": WIDTH,
        "intermediate_size": DENSE,
        "first_k_dense_replace": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": 262144,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
    },
    "vision_config": {"vt_hidden_size": VISION_HIDDEN, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27},
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
    },
}
QUANT_CONFIG = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16},
}


def tensors(experts: int = EXPERTS):
    """Every tensor as (name, dtype, shape), in the order of the layers; fewer experts for a quick look."""
    yield from _vision()
    text = "language_model.model"
    yield f"{text}.embed_tokens.weight", "BF16", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        base = f"{text}.layers.{layer}"
        yield from _attention(base)
        if layer == 0:
            yield from _mlp(f"{base}.mlp", DENSE)
            continue
        yield f"{base}.mlp.gate.weight", "BF16", [EXPERTS, HIDDEN]
        yield f"{base}.mlp.gate.e_score_correction_bias", "F32", [EXPERTS]
        yield from _mlp(f"{base}.mlp.shared_experts", WIDTH)
        for expert in range(experts):
            for part, out, into in (("gate", WIDTH, HIDDEN), ("up", WIDTH, HIDDEN), ("down", HIDDEN, WIDTH)):
                name = f"{base}.mlp.experts.{expert}.{part}_proj"
                yield f"{name}.weight", "U8", [out, into // 2]
                yield f"{name}.weight_scale", "F8_E4M3", [out, into // 16]
                yield f"{name}.weight_scale_2", "F32", []
                yield f"{name}.input_scale", "F32", []
    yield f"{text}.norm.weight", "BF16", [HIDDEN]
    yield "language_model.lm_head.weight", "BF16", [VOCAB, HIDDEN]


def _attention(base):
    yield f"{base}.input_layernorm.weight", "BF16", [HIDDEN]
    yield f"{base}.post_attention_layernorm.weight", "BF16", [HIDDEN]
    base += ".self_attn"
    yield f"{base}.q_a_proj.weight", "BF16", [Q_RANK, HIDDEN]
    yield f"{base}.q_a_layernorm.weight", "BF16", [Q_RANK]
    yield f"{base}.q_b_proj.weight", "BF16", [HEADS * (NOPE + ROPE), Q_RANK]
    yield f"{base}.kv_a_proj_with_mqa.weight", "BF16", [KV_RANK + ROPE, HIDDEN]
    yield f"{base}.kv_a_layernorm.weight", "BF16", [KV_RANK]
    yield f"{base}.kv_b_proj.weight", "BF16", [HEADS * (NOPE + VALUE), KV_RANK]
    yield f"{base}.o_proj.weight", "BF16", [HIDDEN, HEADS * VALUE]


def _mlp(base, width):
    yield f"{base}.gate_proj.weight", "BF16", [width, HIDDEN]
    yield f"{base}.up_proj.weight", "BF16", [width, HIDDEN]
    yield f"{base}.down_proj.weight", "BF16", [HIDDEN, width]


def _vision():
    yield "vision_tower.patch_embed.proj.weight", "BF16", [VISION_HIDDEN, 3, 14, 14]
    yield "vision_tower.patch_embed.pos_emb.weight", "BF16", [64, 64, VISION_HIDDEN]
    for layer in range(VISION_LAYERS):
        base = f"vision_tower.encoder.blocks.{layer}"
        yield f"{base}.norm0.weight", "BF16", [VISION_HIDDEN]
        yield f"{base}.norm1.weight", "BF16", [VISION_HIDDEN]
        yield f"{base}.wqkv.weight", "BF16", [3 * VISION_HIDDEN, VISION_HIDDEN]
        yield f"{base}.wo.weight", "BF16", [VISION_HIDDEN, VISION_HIDDEN]
        yield f"{base}.mlp.fc0.weight", "BF16", [VISION_WIDTH, VISION_HIDDEN]
        yield f"{base}.mlp.fc1.weight", "BF16", [VISION_HIDDEN, VISION_WIDTH]
    yield "mm_projector.proj.0.weight", "BF16", [4 * VISION_HIDDEN, 4 * VISION_HIDDEN]
    yield "mm_projector.proj.2.weight", "BF16", [HIDDEN, 4 * VISION_HIDDEN]


def write_shard(path: Path, members) -> None:
    """One safetensors file with a real header and holes for data."""
    header, offset = {}, 0
    for name, dtype, shape in members:
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        file.truncate(8 + len(text) + offset)


def write_checkpoint(directory: Path, shards: int = SHARDS, config: dict | None = None, all_tensors=None) -> None:
    """The whole checkpoint, its tensors cut into shards of about equal size."""
    directory.mkdir(parents=True, exist_ok=True)
    everything = list(all_tensors if all_tensors is not None else tensors())
    sizes = [math.prod(shape) * BITS[dtype] // 8 for _, dtype, shape in everything]
    share, groups, filled = sum(sizes) / shards, [[]], 0
    for member, size in zip(everything, sizes, strict=True):
        if filled >= share * len(groups) and len(groups) < shards:
            groups.append([])
        groups[-1].append(member)
        filled += size
    names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    weight_map = {}
    for name, members in zip(names, groups, strict=True):
        write_shard(directory / name, members)
        weight_map.update((member[0], name) for member in members)
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(config or CONFIG, indent=2))
    (directory / "hf_quant_config.json").write_text(json.dumps(QUANT_CONFIG, indent=2))
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "tiktoken.model").write_bytes(b"")


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
