"""A plan as JSON and as rows of a table; what people read and what scripts read say the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from .request import MEASURED, PlanEntry, PlanRequest
from .shape import Shape
from .sizes import gib
from .weights import Tally

COLUMNS = ("TP", "fits", "weights", "reserve", "KV cache", "bytes/token", "tokens", "max-model-len")
MARK = "*"
"""Stands behind a measured figure."""


def as_json(shape: Shape, counted: Tally, request: PlanRequest, entries: tuple[PlanEntry, ...]) -> dict[str, Any]:
    """The whole answer as JSON values."""
    return {
        "model": {
            "architecture": shape.architecture,
            "layers": shape.layers,
            "context": shape.context,
            "attention": "mla" if shape.is_mla else "gqa",
            "quantization": shape.quantization or None,
            "checkpoint_bytes": counted.total,
            "tensors": counted.tensors,
        },
        "gpus": {"count": request.gpus, "memory_bytes": request.memory_bytes},
        "plans": [{item.name: _plain(getattr(entry, item.name)) for item in fields(entry)} for entry in entries],
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def title(shape: Shape, counted: Tally, request: PlanRequest) -> str:
    """One line above the table: which model on which GPUs."""
    quantization = f", {shape.quantization}" if shape.quantization else ""
    count = "" if request.gpus is None else f"{request.gpus} x "
    cards = f" on {count}{gib(request.memory_bytes)}" if request.memory_bytes is not None else ""
    return f"{shape.architecture}{quantization}, {gib(counted.total)} in {counted.tensors} tensors{cards}"


def rows(entries: tuple[PlanEntry, ...]) -> list[tuple[str, ...]]:
    """The table's rows under `COLUMNS`."""
    return [_row(entry) for entry in entries]


def _row(entry: PlanEntry) -> tuple[str, ...]:
    def mark(part: str) -> str:
        return MARK if entry.sources.get(part) == MEASURED else ""

    head = str(entry.tensor_parallel_size)
    if entry.pipeline_parallel_size > 1:
        head += f" PP={entry.pipeline_parallel_size}"
    if entry.data_parallel_size > 1:
        head += f" DP={entry.data_parallel_size}"
    figures = (
        gib(entry.weights_bytes_per_gpu) + mark("weights"),
        gib(entry.overhead_bytes_per_gpu) + mark("overhead"),
    )
    if not entry.fits:
        return (head, "no", *figures, "-", f"{entry.kv_bytes_per_token:,}", "-", "-")
    return (
        head,
        "yes",
        *figures,
        gib(entry.kv_cache_bytes_per_gpu) + mark("kv_cache"),
        f"{entry.kv_bytes_per_token:,}",
        f"{entry.max_tokens:,}" + mark("kv_cache"),
        f"{entry.max_model_len:,}",
    )


def remarks(entries: tuple[PlanEntry, ...]) -> list[str]:
    """The lines below the table: refusals, notes, and the flags of the smallest size that fits."""
    found = [reason for entry in entries for reason in entry.reasons]
    found += dict.fromkeys(note for entry in entries for note in entry.notes)
    measured = any(MEASURED in entry.sources.values() for entry in entries)
    found.append(
        f"{MARK} measured in an earlier start; all else is estimated from headers and config.json"
        if measured
        else "estimated from headers and config.json; nothing was measured yet"
    )
    best = next((entry for entry in entries if entry.fits), None)
    if best is not None:
        found.append("use: " + " ".join(best.suggested_args))
    return found


def plain_table(lines: list[tuple[str, ...]]) -> list[str]:
    """Rows as aligned text, for pipes and files."""
    table = [COLUMNS, *lines]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
