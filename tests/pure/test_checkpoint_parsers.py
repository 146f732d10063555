"""Headers, index and documents of a checkpoint: what is right is read, what is wrong is one sentence."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.checkpoint_target import SEEDS, mutations, target
from vllm_supervisor.core.causes import REASONS
from vllm_supervisor.core.checkpoint import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    CheckpointError,
    header_length,
    parse_config,
    parse_header,
    parse_index,
)


def entry(begin, end, dtype="BF16", shape=None):
    return {"dtype": dtype, "shape": shape if shape is not None else [(end - begin) // 2], "data_offsets": [begin, end]}


def parse(header, data_bytes):
    text = json.dumps(header).encode()
    return parse_header(text, 8 + len(text) + data_bytes, "x.safetensors")


def test_a_good_header():
    tensors = parse({"__metadata__": {"format": "pt"}, "b": entry(4, 10), "a": entry(0, 4)}, 10)
    assert [(tensor.name, tensor.nbytes) for tensor in tensors] == [("b", 6), ("a", 4)]


@pytest.mark.parametrize(
    ("header", "data_bytes", "words"),
    [
        ({"a": entry(0, 4), "b": entry(2, 6)}, 6, "overlapping"),
        ({"a": entry(0, 4), "b": entry(6, 8)}, 8, "hole"),
        ({"a": entry(2, 4)}, 4, "hole"),
        ({"a": entry(0, 4)}, 2, "truncated"),
        ({"a": entry(0, 4)}, 6, "2 bytes longer"),
        ({"a": entry(0, 4, dtype="X7")}, 4, "unknown dtype 'X7'"),
        ({"a": entry(0, 4, shape=[3])}, 4, "not what BF16"),
        ({"a": entry(0, 4), "b": entry(4, 10, shape=[2])}, 10, "not what BF16"),
        ({"a": entry(0, 4), "b": entry(4, 6, shape=[2])}, 6, "not what BF16"),
        ({"a": entry(4, 0, shape=[2])}, 4, "not what"),
        ({"a": entry(0, 4, shape=[-2])}, 4, "proper"),
        ({"a": entry(0, 4, shape=[True])}, 4, "proper"),
        ({"a": entry(0, 4, shape="ab")}, 4, "proper"),
        ({"a": entry(0, 4, shape=[1 << 62] * 400)}, 4, "proper"),
        ({"a": entry(0, 4, dtype=["BF16"])}, 4, "proper"),
        ({"a": {"dtype": "BF16", "shape": [2]}}, 4, "proper"),
        ({"a": 7}, 4, "proper"),
        ({"a": None}, 4, "proper"),
    ],
)
def test_a_bad_header(header, data_bytes, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        parse(header, data_bytes)
    assert caught.value.reason in REASONS
    assert "x.safetensors" in caught.value.sentence


@pytest.mark.parametrize(
    ("prefix", "size", "words"),
    [
        (b"", 0, "truncated"),
        (b"\1\0\0", 3, "truncated"),
        ((100).to_bytes(8, "little"), 107, "truncated"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 1 << 40, "more than the format allows"),
        (b"version ", 130, "Git LFS pointer"),
        (b"\xff" * 8, 130, "more than the format allows"),
    ],
)
def test_a_bad_length(prefix, size, words):
    with pytest.raises(CheckpointError, match=words):
        header_length(prefix, size, "x.safetensors")


def test_a_good_length():
    assert header_length((100).to_bytes(8, "little"), 108, "x") == 100


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000])
def test_text_that_is_no_json_object(text):
    for function in (parse_config, parse_index):
        with pytest.raises(CheckpointError):
            function(text)
    with pytest.raises(CheckpointError):
        parse_header(text, 8 + len(text), "x")


def test_index():
    index = parse_index(json.dumps({"weight_map": {"a": "1.st", "b": "1.st", "c": "2.st"}}).encode())
    assert index.shards == {"1.st": ["a", "b"], "2.st": ["c"]}
    assert index.total_size is None


@pytest.mark.parametrize("shard", ["../x", "/etc/passwd", "", "..", 3, None, ["x"], "a\0b", "sub/x"])
def test_an_index_that_leads_elsewhere_is_refused(shard):
    with pytest.raises(CheckpointError, match="not a file beside it"):
        parse_index(json.dumps({"weight_map": {"a": shard}}).encode())


@st.composite
def headers(draw):
    """A correct header and the size of its data, in any order of names."""
    members = draw(
        st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 9), max_size=4)), max_size=8)
    )
    header, offset = {}, 0
    for number, (dtype, shape) in enumerate(members):
        size = -(-math.prod(shape) * DTYPE_BITS[dtype] // 8)
        header[f"t.{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    names = draw(st.permutations(sorted(header)))
    return {name: header[name] for name in names}, offset


@settings(max_examples=60, deadline=None)
@given(headers())
def test_every_correct_header_is_accepted_and_adds_up(made):
    header, size = made
    assert sum(tensor.nbytes for tensor in parse(header, size)) == size


@settings(max_examples=60, deadline=None)
@given(headers(), st.integers(-40, 40).filter(bool))
def test_a_file_of_another_size_is_refused(made, shift):
    header, size = made
    with pytest.raises(CheckpointError, match=r"truncated|longer"):
        parse(header, size + shift)


@settings(max_examples=60, deadline=None)
@given(headers(), st.data())
def test_a_shifted_tensor_is_refused(made, data):
    header, size = made
    solid = [name for name, value in header.items() if value["data_offsets"][1] > value["data_offsets"][0]]
    if not solid:
        return
    name = data.draw(st.sampled_from(solid))
    shift = data.draw(st.integers(1, 5))
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [begin + shift, end + shift]
    with pytest.raises(CheckpointError):
        parse(header, size)


def test_nothing_but_a_checkpoint_error_comes_out_of_random_bytes():
    for data in (*SEEDS, *mutations(1500, seed=5)):
        target(data)


def test_the_target_reaches_the_parsers(monkeypatch):
    monkeypatch.setitem(target.__globals__, "parse_index", lambda data: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        target(SEEDS[0])
