"""What an overlay changes, and when one is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_supervisor.core.checkpoint import CheckpointError
from vllm_supervisor.core.overlay import KEYS, decide, marked_source, marker, rewritten
from vllm_supervisor.core.plan.shape import read_shape

MODELS = Path(__file__).parents[1] / "corpus" / "models"
KIMI = read_shape(json.loads((MODELS / "kimi-k2.5-nvfp4.json").read_text()))
LLAMA = read_shape(json.loads((MODELS / "llama-3.3-70b.json").read_text()))

NAMES = ["a", "b", *sorted(KEYS)]
values = st.recursive(
    st.sampled_from([None, True, -5, 1.5, "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


def keys_of(value):
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=4))
def test_the_keys_go_at_every_depth_and_nothing_else_does(document):
    text = rewritten(json.dumps(document).encode(), "config.json")
    if not keys_of(document) & KEYS:
        assert text is None
        return
    after = json.loads(text)
    assert not keys_of(after) & KEYS
    assert rewritten(text, "config.json") is None
    restored = json.dumps({**document})
    assert all(key in restored for key in keys_of(after))


def test_order_and_letters_are_kept():
    text = rewritten('{"z": "ü", "a": {"kv_cache_scheme": {"x": 1}, "f": 1e-05}, "n": 3}'.encode(), "config.json")
    assert text.decode() == '{\n  "z": "ü",\n  "a": {\n    "f": 1e-05\n  },\n  "n": 3\n}\n'


def test_a_broken_document_is_refused():
    with pytest.raises(CheckpointError):
        rewritten(b"[1]", "config.json")


def test_marker():
    assert marked_source(marker("/models/kimi", {"config.json": "12"})) == "/models/kimi"
    for text in (b"", b"[]", b"{}", b'{"overlay_of": 3}', b"[" * 100_000):
        assert marked_source(text) is None


@pytest.mark.parametrize(
    ("setting", "dtype", "shape", "version", "capability", "wanted"),
    [
        ("auto", "auto", KIMI, (0, 18, 0), (12, 0), True),
        ("auto", "auto", KIMI, (0, 32, 0), (12, 0), False),
        ("auto", "auto", KIMI, (0, 32, 0), (8, 0), True),
        ("auto", "auto", KIMI, (0, 20, 0), (9, 0), False),
        ("auto", "auto", KIMI, None, (12, 0), True),
        ("auto", "auto", KIMI, (0, 32, 0), None, True),
        ("auto", "fp8", KIMI, (0, 18, 0), (12, 0), False),
        ("auto", "auto", LLAMA, (0, 18, 0), (12, 0), False),
        ("off", "auto", KIMI, (0, 18, 0), (12, 0), False),
        ("/srv/overlay", "auto", LLAMA, (0, 32, 0), (9, 0), True),
    ],
)
def test_when_an_overlay_is_wanted(setting, dtype, shape, version, capability, wanted):  # noqa: PLR0917 - a table's columns
    decision = decide(setting, dtype, shape, version, capability)
    assert decision.wanted is wanted
    assert decision.why
