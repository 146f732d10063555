"""What a GPU needs beside weights and KV cache: activations, graphs, communication, the runtime.

An estimate, on purpose a visible one: every part can be shown. Two measurements hold it. The
deployment that this was built around kept about 3.5 GiB (TP=8, hidden size 7168, 8192 batched
tokens). Small models on an H200 kept 0.4 GiB at TP=1 and 0.6 to 0.9 GiB at TP=2, all of it runtime
and communication. After a real start the measured sum takes the estimate's place.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shape import Shape
from .sizes import GIB, MIB
from .weights import Parallel


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes a GPU beside weights and cache."""

    activations: int
    graphs: int
    communication: int
    runtime: int

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.activations + self.graphs + self.communication + self.runtime


def reserve(shape: Shape, parallel: Parallel, batched_tokens: int, sequences: int, *, eager: bool) -> Reserve:
    """The reserve of one GPU.

    Args:
        shape: The model's architecture.
        parallel: How the GPUs work together.
        batched_tokens: Tokens of one step at most; the profile run computes such a step.
        sequences: Sequences of one step at most; the sampler's warm-up computes their logits.
        eager: Without CUDA graphs (`--enforce-eager`).
    """
    tensor = parallel.tensor
    # About eight copies of the residual stream live at once: input, residual, norm, projections.
    stream = batched_tokens * shape.hidden * 2 * 8
    dense = batched_tokens * (shape.intermediate // tensor) * 2 * 2
    # Every token is copied to each of its experts, at hidden size and at the slice's width twice.
    ranks = tensor * parallel.data
    width = shape.moe_intermediate if parallel.expert else shape.moe_intermediate // ranks
    routed = batched_tokens * shape.active_experts * (shape.hidden + 2 * width) * 2 if shape.experts else 0
    if parallel.expert and shape.experts:
        routed //= ranks
    # Logits are gathered on every rank: 16 bits, then 32 bits, then the sampler's sorted copy.
    logits = sequences * shape.vocab * 10
    own_layers = -(-shape.layers // parallel.pipeline)
    gpus_together = tensor * parallel.pipeline
    return Reserve(
        activations=max(stream + max(dense, routed), logits),
        graphs=0 if eager else own_layers * 10 * MIB + 32 * MIB,
        communication=150 * MIB + gpus_together * 60 * MIB if gpus_together * parallel.data > 1 else 0,
        runtime=int(0.4 * GIB),
    )
