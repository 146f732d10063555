"""A checkpoint of some gigabytes that the real engine loads, for what depends on its size alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from pathlib import Path

from lab import models

HIDDEN, INNER, HEADS, KV_HEADS, WORDS = 2048, 8192, 16, 4, 512
SHARDS = 12


def checkpoint(directory: Path, gib: float) -> int:
    """A Qwen2 checkpoint with random weights, in shards with an index; its bytes."""
    small = models.tiny_model()
    directory.mkdir(parents=True)
    for file in small.iterdir():
        if not file.name.endswith((".safetensors", ".index.json")):
            shutil.copy(file, directory)
    layer = _layer(0)
    each = sum(2 * rows * columns for _, (rows, columns) in layer)
    layers = max(round(gib * (1 << 30) / each), SHARDS)
    config = json.loads((small / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "num_hidden_layers": layers, "max_window_layers": layers,
        "vocab_size": config.get("vocab_size", WORDS), "torch_dtype": "bfloat16", "dtype": "bfloat16",
        "tie_word_embeddings": True, "head_dim": HIDDEN // HEADS,
    }  # fmt: skip
    config.pop("layer_types", None)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    shards: list[list[tuple[str, tuple[int, int]]]] = [[] for _ in range(SHARDS)]
    shards[0] = [("model.embed_tokens.weight", (config["vocab_size"], HIDDEN)), ("model.norm.weight", (HIDDEN, 1))]
    for number in range(layers):
        shards[number * SHARDS // layers] += _layer(number)
    chance = random.Random(20)
    block = b"".join(struct.pack("<H", chance.choice((0x3C00, 0xBC00, 0x3B80, 0xBB80))) for _ in range(1 << 19))
    index: dict[str, str] = {}
    total = 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        total += _write(directory / name, tensors, block)
        index |= dict.fromkeys((tensor for tensor, _ in tensors), name)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (directory / "model.safetensors.index.json").write_text(text)
    return total


def _layer(number: int) -> list[tuple[str, tuple[int, int]]]:
    """The tensors of a layer with their shapes; a vector has one column."""
    at, kv = f"model.layers.{number}", HIDDEN * KV_HEADS // HEADS
    return [
        (f"{at}.self_attn.q_proj.weight", (HIDDEN, HIDDEN)),
        (f"{at}.self_attn.k_proj.weight", (kv, HIDDEN)),
        (f"{at}.self_attn.v_proj.weight", (kv, HIDDEN)),
        (f"{at}.self_attn.o_proj.weight", (HIDDEN, HIDDEN)),
        (f"{at}.self_attn.q_proj.bias", (HIDDEN, 1)),
        (f"{at}.self_attn.k_proj.bias", (kv, 1)),
        (f"{at}.self_attn.v_proj.bias", (kv, 1)),
        (f"{at}.mlp.gate_proj.weight", (INNER, HIDDEN)),
        (f"{at}.mlp.up_proj.weight", (INNER, HIDDEN)),
        (f"{at}.mlp.down_proj.weight", (HIDDEN, INNER)),
        (f"{at}.input_layernorm.weight", (HIDDEN, 1)),
        (f"{at}.post_attention_layernorm.weight", (HIDDEN, 1)),
    ]


def _write(path: Path, tensors: list[tuple[str, tuple[int, int]]], block: bytes) -> int:
    header, place = {}, 0
    for name, (rows, columns) in tensors:
        size = 2 * rows * columns
        shape = [rows] if columns == 1 else [rows, columns]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = place
        while left:
            file.write(block[: min(left, len(block))])
            left -= min(left, len(block))
        file.flush()
        os.fsync(file.fileno())
    return place
