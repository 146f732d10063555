"""The drawings of the page: bars and a small chart, as inline SVG without any style of its own.

Colours come from the classes in the style sheet, sizes from attributes: a strict content security
policy forbids style attributes. Every drawing says in words what it shows.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

Series = Sequence[tuple[float, float | None]]
"""(seconds before now as a negative number, value); None is a gap."""

WIDTH, HEIGHT = 600.0, 120.0


def bar(label: str, parts: Sequence[tuple[str, float]], mark: float | None = None) -> str:
    """A horizontal bar.

    Args:
        label: What it shows, in words.
        parts: Class and share of each piece from the left; shares of 1 in all at most.
        mark: Where a line is drawn across it, as a share.
    """
    pieces, left = [], 0.0
    for name, share in parts:
        width = max(min(share, 1.0 - left), 0.0) * 100.0
        pieces.append(f'<rect class="{name}" x="{left * 100:.2f}" width="{width:.2f}" height="10"/>')
        left += width / 100.0
    if mark is not None:
        pieces.append(f'<rect class="mark" x="{min(max(mark, 0.0), 0.99) * 100:.2f}" width="1" height="10"/>')
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{_text(label)}">'
        f'<rect class="track" width="100" height="10"/>{"".join(pieces)}</svg>'
    )


def chart(label: str, series: Sequence[tuple[str, Series]], seconds: float) -> str:
    """Lines over the last `seconds`, from 0 up to a round figure above the highest value.

    Args:
        label: What it shows, in words, with the newest values.
        series: Class and values of each line; they share the scale.
        seconds: Width of the time axis.
    """
    highest = max((value for _, line in series for _, value in line if value is not None), default=0.0)
    top = ceiling(highest)
    drawn = []
    for name, line in series:
        for run in _runs(line):
            points = " ".join(f"{_x(at, seconds):.1f},{HEIGHT - HEIGHT * value / top:.1f}" for at, value in run)
            if len(run) == 1:
                points += f" {_x(run[0][0], seconds) + 2:.1f},{HEIGHT - HEIGHT * run[0][1] / top:.1f}"
            drawn.append(f'<polyline class="{name}" points="{points}"/>')
    grid = "".join(f'<line class="grid" x1="0" x2="{WIDTH:.0f}" y1="{y:.0f}" y2="{y:.0f}"/>' for y in (0.5, 60, 119.5))
    return (
        f'<div class="chart"><span class="top" aria-hidden="true">{top:g}</span>'
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_text(label)}">{grid}{"".join(drawn)}</svg>'
        f'<span class="from" aria-hidden="true">{seconds / 60:.0f} min ago</span>'
        '<span class="to" aria-hidden="true">now</span></div>'
    )


def ceiling(value: float) -> float:
    """The next round figure, so that the highest value is well up in the chart; at least 1."""
    step = 1.0
    while True:
        for factor in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0):
            if step * factor >= value:
                return step * factor
        step *= 10.0


def _x(at: float, seconds: float) -> float:
    return WIDTH * (1.0 + max(at, -seconds) / seconds)


def _runs(line: Series) -> list[list[tuple[float, float]]]:
    """The line cut where values are missing."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in line:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def _text(label: str) -> str:
    return html.escape(label, quote=True)
