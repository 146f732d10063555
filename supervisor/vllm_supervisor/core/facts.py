"""What one line of the engine's output says, as values.

`scanner.Scanner` makes them from text; `step` acts on them. The names of figures are fixed here,
because status sentences, the history and the metrics use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .causes import Cause
from .phases import Phase


class FigureName(StrEnum):
    """A figure that the log gives. Numbers are floats in the unit of the name; the rest is text."""

    ENGINE_VERSION = "engine_version"
    MODEL = "model"
    ARCHITECTURE = "architecture"
    QUANTIZATION = "quantization"
    TENSOR_PARALLEL_SIZE = "tensor_parallel_size"
    MAX_MODEL_LEN = "max_model_len"
    CHECKPOINT_GIB = "checkpoint_gib"
    WEIGHTS_GIB = "weights_gib"
    LOAD_SECONDS = "load_seconds"
    WEIGHTS_SECONDS = "weights_seconds"
    COMPILE_SECONDS = "compile_seconds"
    KV_CACHE_GIB = "kv_cache_gib"
    KV_CACHE_TOKENS = "kv_cache_tokens"
    KV_CACHE_DTYPE = "kv_cache_dtype"
    MAX_CONCURRENCY = "max_concurrency"
    ATTENTION_BACKEND = "attention_backend"
    NCCL_VERSION = "nccl_version"
    GRAPH_GIB = "graph_gib"
    INIT_SECONDS = "init_seconds"


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """A line that belongs to the begin of a phase."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress bar of the current phase: shards loaded, graphs captured.

    Attributes:
        phase: The phase that the bar belongs to.
        done: Finished units; never more than `total`.
        total: Units in all, at least 1.
        bar: The bar's own title; two bars of one phase (a draft model) differ in it or restart at 0.
    """

    phase: Phase
    done: float
    total: float
    bar: str = ""


@dataclass(frozen=True, slots=True)
class StartupComplete:
    """Gate A: uvicorn's "Application startup complete", or one of its other forms."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the log; the last one seen of a name counts."""

    name: FigureName
    value: float | str


@dataclass(frozen=True, slots=True)
class CauseFound:
    """The classifier's best verdict so far; it replaces an earlier one of the same start."""

    cause: Cause


Fact = PhaseSeen | Progress | StartupComplete | Figure | CauseFound
