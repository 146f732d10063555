"""What a checkpoint's files say, from their bytes: safetensors headers, the index, config.json.

The caller reads the bytes and hands over sizes; nothing here opens a file. Whatever is wrong with
them ends as a `CheckpointError` with a catalogue reason and one sentence; no other exception
leaves this module, whatever the bytes are.

The format: eight bytes with the little-endian length N of the header, N bytes of JSON, then the
data. `data_offsets` count from the data's begin and must cover it without gap or overlap.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""
MAX_INDEX_BYTES = 128 * 1024 * 1024
"""The index of 277,000 tensors takes about 30 MB."""
MAX_CONFIG_BYTES = 16 * 1024 * 1024
"""A config.json is some kilobytes; what is larger is something else."""

_MAX_NUMBER = (1 << 63) - 1
_MAX_DIMENSIONS = 64

DTYPE_BITS: dict[str, int] = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Bits of one element of every dtype that the safetensors format knows."""


class CheckpointError(Exception):
    """A checkpoint that cannot be used.

    Attributes:
        reason: A key of `causes.REASONS`.
        sentence: What is wrong with which file, for people.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


class Tensor(NamedTuple):
    """One tensor of a header: its name, dtype, shape and its bytes in the file.

    A named tuple: a large checkpoint has 277,000 of them, and dataclasses take thrice as long.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Index:
    """`model.safetensors.index.json`: the shards that it names with the tensors of each."""

    shards: dict[str, list[str]]
    total_size: int | None


def header_length(prefix: bytes, file_bytes: int, name: str) -> int:
    """The length of a header from the first eight bytes of its file.

    Args:
        prefix: The first eight bytes, fewer when the file is shorter.
        file_bytes: The size of the whole file.
        name: The file's name, for the sentence.

    Returns:
        The header's length in bytes; the file is long enough for it.

    Raises:
        CheckpointError: The file is too short, or the length makes no sense.
    """
    if len(prefix) < PREFIX_BYTES:
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} is truncated: {file_bytes} bytes are not even a safetensors header; download it again",
        )
    if prefix == b"version ":
        raise CheckpointError(
            "download-incomplete",
            f"{name} is a Git LFS pointer, not the weights; fetch the file itself (git lfs pull, or hf download)",
        )
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} announces a header of {length} bytes, more than the format allows ({MAX_HEADER_BYTES}); "
            "the file is no safetensors file or is damaged",
        )
    if PREFIX_BYTES + length > file_bytes:
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} is truncated: its header needs {length} bytes and the file has {file_bytes}; download it again",
        )
    return length


def parse_header(text: bytes, file_bytes: int, name: str) -> list[Tensor]:
    """The tensors that a header names, checked against the file's size.

    Args:
        text: The header's bytes, without the eight bytes before it.
        file_bytes: The size of the whole file.
        name: The file's name, for the sentence.

    Returns:
        The tensors in the order of the header.

    Raises:
        CheckpointError: The header is not JSON, an entry is malformed, offsets overlap or leave a
            gap, a dtype is unknown, or the file is shorter or longer than the header promises.
    """
    document = _json_object(text, f"the header of {name}", "checkpoint-corrupt")
    document.pop("__metadata__", None)
    tensors: list[Tensor] = []
    spans: list[tuple[int, int]] = []
    # A large checkpoint repeats some dozen shapes; each is examined once.
    known: dict[tuple[Any, ...], tuple[str, tuple[int, ...], int]] = {}
    for key, entry in document.items():
        try:
            begin, end = entry["data_offsets"]
            dtype, shape, nbytes = known[entry["dtype"], *entry["shape"]]
        except (KeyError, TypeError, ValueError):
            nbytes = -1
        if nbytes < 0 or type(begin) is not int or type(end) is not int or end - begin != nbytes:
            tensor, begin, end = _tensor(key, entry, name)
            known[tensor.dtype, *tensor.shape] = tensor.dtype, tensor.shape, tensor.nbytes
        else:
            tensor = Tensor(key, dtype, shape, nbytes)
        tensors.append(tensor)
        spans.append((begin, end))
    _check_cover(spans, tensors, file_bytes - PREFIX_BYTES - len(text), name)
    return tensors


def parse_index(text: bytes, name: str = "model.safetensors.index.json") -> Index:
    """The index of a sharded checkpoint.

    Raises:
        CheckpointError: It is not JSON, has no weight_map, or names a file outside the directory.
    """
    document = _json_object(text, name, "checkpoint-corrupt")
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("checkpoint-corrupt", f"{name} has no weight_map, so it names no shard")
    shards: dict[str, list[str]] = {}
    for tensor, shard in weight_map.items():
        if isinstance(shard, str) and (known := shards.get(shard)) is not None:
            known.append(tensor)
        elif not isinstance(shard, str) or not shard or "/" in shard or "\0" in shard or shard in {".", ".."}:
            raise CheckpointError(
                "checkpoint-corrupt", f"{name} names {shard!r:.80} for {tensor:.80}, which is not a file beside it"
            )
        else:
            shards[shard] = [tensor]
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(shards, total if isinstance(total, int) and not isinstance(total, bool) else None)


def parse_config(text: bytes, name: str = "config.json") -> dict[str, Any]:
    """A JSON object out of config.json, hf_quant_config.json and the like.

    Raises:
        CheckpointError: It is not a JSON object.
    """
    return _json_object(text, name, "checkpoint-corrupt")


def _json_object(text: bytes, what: str, reason: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise CheckpointError(reason, f"{what} is nested too deeply to be what it should be") from None
    except ValueError as problem:  # wrong JSON, wrong UTF-8, an over-long integer
        detail = str(problem).split(":", maxsplit=1)[0][:120]
        raise CheckpointError(reason, f"{what} is not valid JSON ({detail}); download it again") from None
    if not isinstance(document, dict):
        raise CheckpointError(reason, f"{what} is a JSON {type(document).__name__}, not an object")
    return document


def _tensor(key: str, entry: Any, name: str) -> tuple[Tensor, int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = DTYPE_BITS.get(dtype)
        numbers = (begin, end, *shape)
        # `type() is`, because JSON's true is an int for isinstance. The limits keep products small.
        regular = all([type(number) is int and 0 <= number <= _MAX_NUMBER for number in numbers])  # noqa: C419
    except (TypeError, KeyError, ValueError):
        regular = False
    if not regular or len(shape) > _MAX_DIMENSIONS:
        raise CheckpointError(
            "checkpoint-corrupt", f"{name} describes the tensor {key:.80} without a proper dtype, shape or data_offsets"
        )
    if bits is None:
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} stores the tensor {key:.80} with the unknown dtype {dtype!r:.40}; "
            "known are " + ", ".join(sorted(DTYPE_BITS)),
        )
    sizes = tuple(shape)
    nbytes = end - begin
    if nbytes * 8 != math.prod(sizes) * bits and nbytes != -(-math.prod(sizes) * bits // 8):
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} gives the tensor {key:.80} {nbytes} bytes, which is not what {dtype} of shape "
            f"{list(sizes)!r:.80} takes; download it again",
        )
    return Tensor(key, dtype, sizes, nbytes), begin, end


def _check_cover(spans: list[tuple[int, int]], tensors: list[Tensor], data_bytes: int, name: str) -> None:
    reached = 0
    for position in sorted(range(len(spans)), key=spans.__getitem__):
        begin, end = spans[position]
        if begin != reached:
            what = "overlapping data_offsets" if begin < reached else "a hole in its data_offsets"
            raise CheckpointError(
                "checkpoint-corrupt", f"{name} has {what} at the tensor {tensors[position].name:.80}; download it again"
            )
        reached = end
    if reached > data_bytes:
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} is truncated: its header promises {reached} bytes of data and {data_bytes} are there; "
            "download it again",
        )
    if reached < data_bytes:
        raise CheckpointError(
            "checkpoint-corrupt",
            f"{name} is {data_bytes - reached} bytes longer than its header promises; download it again",
        )
