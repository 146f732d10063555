"""The state of an instance on a terminal, by way of rich; NO_COLOR is honoured by rich itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vllm_supervisor.core import several
from vllm_supervisor.core.overview import Standing, mood, phase_rows
from vllm_supervisor.core.plain import (
    GPU_COLUMNS,
    NODE_COLUMNS,
    configuration_facts,
    ended_facts,
    facts,
    gpu_cells,
    node_rows,
    phase_cells,
    printable,
)
from vllm_supervisor.core.words import duration

STYLES = {
    Standing.DONE: "green",
    Standing.NOW: "bold cyan",
    Standing.FAILED: "bold red",
    Standing.TODO: "dim",
}
SIGNS = {Standing.DONE: "✓", Standing.NOW: "▸", Standing.FAILED: "✗", Standing.TODO: "·"}
BAR_WIDTH = 40
_TONES = {"good": "bold green", "bad": "bold red", "warn": "bold yellow", "busy": "bold cyan"}


def view(status: Mapping[str, Any]) -> RenderableType:
    """Everything about an instance, one below the other."""
    if not status.get("running", True):
        return _ended(status)
    head = Text.assemble((printable(str(status["instance"])), "bold"), "  ", _state(status))
    parts: list[RenderableType] = [head]
    bar = progress(status)
    if bar is not None:
        parts.append(bar)
    parts.append(_pairs(facts(status)))
    rows = phase_rows(status)
    if rows:
        table = Table("", "phase", "took", "usual", box=None, pad_edge=False, header_style="dim")
        for row in rows:
            _, name, took, usual = phase_cells(row)
            style = STYLES[row.standing]
            table.add_row(SIGNS[row.standing], name, Text(took, "yellow" if row.slow else ""), usual, style=style)
        parts += ["", table]
    engines = several.rows(status)
    if engines:
        table = Table(*several.COLUMNS, box=None, pad_edge=False, header_style="dim")
        for cells in engines:
            table.add_row(*cells, style="red" if cells[-1].startswith("hung") else "")
        parts += ["", table]
    nodes = node_rows(status)
    if nodes:
        table = Table(*NODE_COLUMNS, box=None, pad_edge=False, header_style="dim")
        for line in nodes:
            table.add_row(*line, style="red" if line[2] == "missing" else "")
        parts += ["", table]
    gpus = status.get("gpus") or []
    if gpus:
        parts += ["", _gpus(gpus)]
    return Group(*parts)


def _state(status: Mapping[str, Any]) -> tuple[str, str]:
    """The word for its state, and the colour of that."""
    tone, word = mood(status)
    return word, _TONES[tone]


def progress(status: Mapping[str, Any], width: int = BAR_WIDTH) -> RenderableType | None:
    """The bar of a load with its figures; None when there is nothing to measure."""
    ratio = status.get("progress")
    if ratio is None or status["ready"]:
        return None
    grid = Table.grid(padding=(0, 1))
    shards = status.get("shards")
    text = f"{ratio:.0%}".replace("%", " %")
    if shards and status["phase"] == "loading-weights":
        text += f"  shard {shards['loaded']:.0f} of {shards['total']:.0f}"
    grid.add_row(ProgressBar(total=1.0, completed=ratio, width=width), text)
    return grid


def show(status: Mapping[str, Any]) -> None:
    """Print it once."""
    Console().print(view(status))


@contextlib.contextmanager
def watching() -> Iterator[Callable[[Mapping[str, Any] | str], None]]:
    """A screen of its own; gives the function that repaints it."""
    with Live(console=Console(), auto_refresh=False, screen=True) as live:

        def shown(status: Mapping[str, Any] | str) -> None:
            live.update(status if isinstance(status, str) else view(status), refresh=True)

        yield shown


@contextlib.contextmanager
def repainting(stream: TextIO) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Phase, bar and sentence, repainted in place and gone afterwards."""
    with Live(console=Console(file=stream), auto_refresh=False, transient=True) as live:
        yield lambda status: live.update(brief(status), refresh=True)


def brief(status: Mapping[str, Any]) -> RenderableType:
    """An instance in two or three lines."""
    head = Text.assemble(
        (printable(str(status["instance"])), "bold"),
        "  ",
        _state(status),
        f"  {duration(status.get('running_seconds') or 0.0)}",
    )
    bar = progress(status)
    sentence = Text(printable(str(status["status"])), overflow="ellipsis", no_wrap=True)
    return Group(head, *([bar] if bar is not None else []), sentence)


def print_table(columns: Sequence[str], lines: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """A table whose lines have a style each."""
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for line, style in zip(lines, styles, strict=True):
        table.add_row(*line, style=style)
    Console().print(table)


def _pairs(pairs: Sequence[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    styles = {"fault": "red", "cause": "red", "advice": "yellow", "warning": "yellow", "pace": "yellow"}
    for name, text in pairs:
        grid.add_row(name, Text(printable(text), styles.get(name, "")))
    return grid


def _ended(status: Mapping[str, Any]) -> RenderableType:
    head = Text.assemble((printable(str(status["instance"])), "bold"), "  ", ("not running", "bold red"))
    last = status.get("last")
    pairs = [*(ended_facts(last, time.time()) if last else ()), *configuration_facts(status)]
    return Group(head, *(() if last else (Text("never started"),)), *((_pairs(pairs),) if pairs else ()))


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*GPU_COLUMNS, "", box=None, pad_edge=False, header_style="dim")
    for gpu in gpus:
        used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
        bar: RenderableType = ProgressBar(total=total, completed=used, width=20) if used is not None and total else ""
        table.add_row(*gpu_cells(gpu), bar)
    return table
