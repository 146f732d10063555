"""From bytes of KV cache to tokens and to the longest context, counted in the engine's own blocks.

vLLM hands out blocks of `block_size` tokens. One of them, the null block, is never usable, so one
request needs a block fewer than there are. Models that mix full and sliding-window layers share one
pool between groups of equally many layers (v1/core/kv_cache_utils.py of 0.32).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .shape import Shape
from .weights import stages

DEFAULT_BLOCK = 16


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How one GPU's cache is laid out.

    Attributes:
        layer_bytes: Bytes of one token in one layer.
        layers: Layers of this GPU that have a cache.
        groups: For each group of layers its window in tokens, or None for full attention.
        group_layers: Layers of a group, padding included.
        block: Tokens of a block.
    """

    layer_bytes: int
    layers: int
    groups: tuple[int | None, ...]
    group_layers: int
    block: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers of this GPU."""
        return self.layer_bytes * self.layers

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return self.block * self.group_layers * self.layer_bytes


def layer_bytes(shape: Shape, tensor: int, entry_bytes: int) -> int:
    """Bytes that one token takes in one layer on one rank.

    Args:
        shape: The model's architecture.
        tensor: Tensor-parallel size. The latent of MLA is whole on every rank; key and value heads
            are divided, at least one a rank.
        entry_bytes: Bytes of a cache entry: 2, or 1 for FP8.
    """
    if shape.is_mla:
        # The sparse indexer keeps FP8 keys with one 32-bit scale beside the latent.
        indexer = shape.indexer_dim + 4 if shape.indexer_dim else 0
        return (shape.kv_lora_rank + shape.rope_dim) * entry_bytes + indexer
    heads = max(1, shape.kv_heads // tensor)
    return heads * (shape.head_dim + shape.v_head_dim) * entry_bytes


def layout(shape: Shape, tensor: int, pipeline: int, entry_bytes: int, block: int = DEFAULT_BLOCK) -> CacheLayout:
    """The layout on the pipeline stage whose cache is largest, which bounds all of them."""
    spans = stages(shape.layers, pipeline)
    windows = max(([shape.windows[layer] for layer in span if shape.windows[layer] != 0] for span in spans), key=len)
    counts = Counter(windows)
    if not counts:
        return CacheLayout(layer_bytes(shape, tensor, entry_bytes), 0, (), 0, block)
    smallest, largest = min(counts.values()), max(counts.values())
    size = largest if largest < smallest * 1.5 else smallest
    groups = tuple(window for window, layers in counts.items() for _ in range(-(-layers // size)))
    return CacheLayout(layer_bytes(shape, tensor, entry_bytes), len(windows), groups, size, block)


def blocks_needed(cache: CacheLayout, length: int, batched_tokens: int) -> int:
    """Blocks of the pool that one request of this length takes."""
    needed = 0
    for window in cache.groups:
        if window is None:
            needed += -(-length // cache.block)
        else:
            held = min(window - 1 + batched_tokens, length)
            needed += -(-held // cache.block) + 1
    return needed


def longest(cache: CacheLayout, memory: int, context: int, batched_tokens: int) -> int:
    """The longest request that fits into so much memory, `context` at most; 0 when none does."""
    if not cache.groups:
        return context
    usable = memory // cache.block_bytes - 1
    low, high = 0, context
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_needed(cache, middle, batched_tokens) <= usable:
            low = middle
        else:
            high = middle - 1
    return low


def capacity(cache: CacheLayout, memory: int, length: int, batched_tokens: int) -> int:
    """Tokens that the engine reports as the size of its cache.

    For one kind of full attention that is blocks times block size. For mixed models it is the
    number of requests of the longest length that fit at once, times that length.
    """
    if not cache.groups or memory <= 0:
        return 0
    blocks = memory // cache.block_bytes
    if cache.groups == (None,):
        return blocks * cache.block
    needed = blocks_needed(cache, max(length, 1), batched_tokens)
    return blocks * length // needed
