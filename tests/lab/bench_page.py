"""The page that `make bench ARGS=--write` makes of its rows, and the picture on it."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from html import escape

from lab.bench_parts import Row

LEFT, WIDE, HIGH, TOP = 430, 420, 44, 54
LEAST, MOST = 0.001, 100.0
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .dim { fill: #59636e } .ours { fill: #0969da }
.other { fill: #afb8c1 } .missed { fill: #cf222e } line { stroke: #d1d9e0 } .target { stroke: #1a7f37; stroke-width: 2 }
rect.back { fill: #ffffff }
"""


def page(rows: Sequence[Row], command: str) -> str:
    """docs/benchmarks.md."""
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    )
    lines = [
        "# Benchmarks\n",
        f"`{command}` wrote this page, on {machine}, {time.strftime('%Y-%m-%d')}. Each figure stands beside what",
        "would be run otherwise, taken in the same run. The scripted engine is `tests/fake`, the real one vLLM for the CPU,",
        "the eight GPUs are a stand-in of NVML's library that both exporters read through the real binding",
        "(`tests/lab/nvml_stub.c`); on real GPUs the same was measured: [gpu](gpu/README.md). No false alarm in saturation:",
        "[reliability](reliability.md).\n",
        "![Each figure as a share of its target](images/benchmarks.svg)\n",
        "| what | measured | beside it | target |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row.words)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[Row]) -> str:
    """An SVG: each figure as a share of its target, on a logarithmic scale; left of the line is better."""
    shown = [row for row in rows if row.limit and row.value is not None]
    height = TOP + HIGH * len(shown) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 30} {height}" role="img">',
        f"<title>Each figure as a share of its target</title><style>{STYLE}</style>",
        f'<rect class="back" width="{LEFT + WIDE + 30}" height="{height}"/>',
        '<rect class="ours" x="12" y="12" width="14" height="12"/><text x="32" y="23">vllm-supervisor</text>',
        '<rect class="other" x="150" y="12" width="14" height="12"/><text x="170" y="23">what would be run otherwise</text>',
    ]
    for power in range(-3, 3):
        share = 10.0**power
        label, look = ("target", ' class="target"') if share == 1 else (f"{share:g}", "")
        parts.append(
            f'<line x1="{_x(share):.0f}" y1="{TOP - 12}" x2="{_x(share):.0f}" y2="{height - 24}"{look}/>'
            f'<text class="dim" text-anchor="middle" x="{_x(share):.0f}" y="{height - 8}">{label}</text>'
        )
    for number, row in enumerate(shown):
        parts += _bars(row, TOP + HIGH * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(row: Row, top: int) -> list[str]:
    share = _share(row, row.value)
    parts = [
        f'<text text-anchor="end" x="{LEFT - 10}" y="{top + 11}">{escape(row.what.split(",")[0])}</text>',
        f'<text class="dim" text-anchor="end" x="{LEFT - 10}" y="{top + 27}">{escape(row.measured)}</text>',
        f'<rect class="{"ours" if share <= 1 else "missed"}" x="{LEFT}" y="{top}" width="{_x(share) - LEFT:.1f}" height="13"/>',
    ]
    if row.other is not None:
        wide = _x(_share(row, row.other)) - LEFT
        parts.append(f'<rect class="other" x="{LEFT}" y="{top + 16}" width="{wide:.1f}" height="10"/>')
    return parts


def _share(row: Row, value: float | None) -> float:
    assert row.limit
    assert value is not None
    share = row.limit / value if row.more and value else value / row.limit
    return min(max(share, LEAST * 1.2), MOST)


def _x(share: float) -> float:
    return LEFT + WIDE * (math.log10(share) - math.log10(LEAST)) / (math.log10(MOST) - math.log10(LEAST))
