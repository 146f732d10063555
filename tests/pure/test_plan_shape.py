"""config.json of the true shapes, read into what memory depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_supervisor.core.checkpoint import CheckpointError
from vllm_supervisor.core.plan.shape import read_shape

MODELS = Path(__file__).parents[1] / "corpus" / "models"


def shape_of(name, **changes):
    return read_shape(json.loads((MODELS / f"{name}.json").read_text()) | changes)


def test_nested_and_bare_configurations_give_the_same_attention():
    kimi, deepseek = shape_of("kimi-k2.5-nvfp4"), shape_of("deepseek-v3")
    for shape in (kimi, deepseek):
        assert (shape.layers, shape.kv_lora_rank, shape.rope_dim, shape.is_mla) == (61, 512, 64, True)
    assert (kimi.experts, deepseek.experts, kimi.heads, deepseek.heads) == (384, 256, 64, 128)
    assert (kimi.context, deepseek.context) == (262144, 163840)


@pytest.mark.parametrize(
    ("name", "kv_heads", "head_dim", "quantization"),
    [
        ("llama-3.3-70b", 8, 128, ""),
        ("mistral-7b-v0.1", 8, 128, ""),
        ("qwen3-235b-a22b-fp8", 4, 128, "fp8"),
        ("gpt-oss-120b", 8, 64, "mxfp4"),
        ("qwen2.5-32b-awq", 8, 128, "awq"),
        ("qwen2-2-layers", 8, 64, ""),
    ],
)
def test_grouped_attention(name, kv_heads, head_dim, quantization):
    shape = shape_of(name)
    assert (shape.kv_heads, shape.head_dim, shape.v_head_dim) == (kv_heads, head_dim, head_dim)
    assert shape.quantization == quantization
    assert not shape.is_mla


def test_windows_of_layers():
    assert set(shape_of("mistral-7b-v0.1").windows) == {4096}
    assert shape_of("gpt-oss-120b").windows[:2] == (128, None)
    assert set(shape_of("qwen2-2-layers").windows) == {None}, "use_sliding_window is false there"
    assert set(shape_of("llama-3.3-70b").windows) == {None}
    linear = shape_of("qwen2-2-layers", layer_types=["linear_attention", "full_attention"])
    assert linear.windows == (0, None)
    upper = shape_of("qwen2-2-layers", use_sliding_window=True, max_window_layers=1)
    assert upper.windows == (None, 4096)


@pytest.mark.parametrize(
    ("changes", "quant", "expected"),
    [
        ({}, None, ""),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, None, "fp8"),
        ({"quantization_config": {"kv_cache_scheme": None}}, None, ""),
        ({}, {"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({}, {"quantization": {"kv_cache_quant_algo": None}}, ""),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 4}}}, None, ""),
    ],
)
def test_wish_for_an_fp8_cache(changes, quant, expected):
    config = json.loads((MODELS / "llama-3.3-70b.json").read_text()) | changes
    assert read_shape(config, quant).kv_scheme == expected


def test_context_follows_rope_scaling_only_where_the_engine_multiplies():
    assert shape_of("llama-3.3-70b").context == 131072
    linear = shape_of("llama-3.3-70b", rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert linear.context == 262144
    assert shape_of("llama-3.3-70b", rope_scaling={"rope_type": "linear", "factor": None}).context == 131072


@pytest.mark.parametrize("value", [None, 0, -3, "61", True, 1 << 60, 6.5, []])
def test_a_config_without_a_sensible_layer_count_is_refused(value):
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        shape_of("llama-3.3-70b", num_hidden_layers=value)


def test_a_config_of_nonsense_is_refused_in_a_sentence():
    for config in ({}, {"text_config": {}}, {"text_config": 3}, {"num_hidden_layers": 2}):
        with pytest.raises(CheckpointError) as caught:
            read_shape(config)
        assert caught.value.reason == "checkpoint-mismatch"
