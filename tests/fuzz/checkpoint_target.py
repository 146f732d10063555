"""Fuzz target for the parsers of checkpoint files: bytes in, nothing but `CheckpointError` out.

Usable by any fuzzer as it is; `mutations` makes the bounded random inputs of the pure ring.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator

from vllm_supervisor.core.checkpoint import CheckpointError, header_length, parse_config, parse_header, parse_index
from vllm_supervisor.core.overlay import marked_source, rewritten
from vllm_supervisor.core.plan.shape import read_shape
from vllm_supervisor.core.plan.weights import tally

SEEDS = (
    json.dumps({"a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {}}).encode(),
    json.dumps(
        {
            "a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]},
            "b": {"dtype": "U8", "shape": [], "data_offsets": [2, 3]},
        }
    ).encode(),
    json.dumps({"metadata": {"total_size": 12}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}).encode(),
    json.dumps(
        {
            "num_hidden_layers": 2,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 4,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "quantization_config": {"kv_cache_scheme": {"num_bits": 8}, "weight_block_size": [128, 128]},
        }
    ).encode(),
)
FRAGMENTS = (
    b"[",
    b"{",
    b"}",
    b'"',
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"NaN",
    b"\\ud800",
    b"\xff",
    b"\0",
    b",",
)


def target(data: bytes) -> None:
    """Feed the bytes to every parser; a `CheckpointError` with a sentence is the only way to fail."""
    for parse in (_header, _index, _config):
        sentence = "parsed"
        try:
            parse(data)
        except CheckpointError as problem:
            sentence = problem.sentence
        assert sentence
        assert "\n" not in sentence
        assert len(sentence) < 600


def _header(data: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        header_length(data[:8], len(data), "fuzz")
    parse_header(data, 8 + len(data) + 12, "fuzz")


def _index(data: bytes) -> None:
    parse_index(data)


def _config(data: bytes) -> None:
    config = parse_config(data)
    marked_source(data)
    rewritten(data, "fuzz")
    tally([], read_shape(config, config))


def mutations(count: int, seed: int) -> Iterator[bytes]:
    """So many random variants of the seeds, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(SEEDS))
        for _ in range(chance.randint(1, 6)):
            where = chance.randrange(len(data) + 1)
            match chance.randrange(4):
                case 0 if where < len(data):
                    data[where] = chance.randrange(256)
                case 1:
                    data[where:where] = chance.choice(FRAGMENTS)
                case 2:
                    del data[where : where + chance.randint(1, 20)]
                case _:
                    data[where:where] = data[max(0, where - chance.randint(1, 30)) : where]
        yield bytes(data)
