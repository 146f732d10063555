"""The drawing of `loaders`: bars of every way to load beside the disk's own speed, as an SVG that stands alone."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from vllm_supervisor.core.loaders import Measured
from vllm_supervisor.core.words import size

ROW, LEFT, WIDE = 44, 150, 560
COLOURS: Mapping[str, str] = {"cold": "#4477aa", "warm": "#ddaa33"}


def picture(title: str, disk: float | None, found: Sequence[Measured]) -> str:
    """Bars of every way, cold and warm, with the disk's own speed as a line; an SVG that stands alone."""
    rows = [one for one in found if not one.problem]
    top = max([disk or 0.0, *(value or 0.0 for one in rows for value in (one.cold, one.warm)), 1.0])
    height = 70 + ROW * len(rows)
    drawn = [f'<text x="10" y="24" font-size="16">{html.escape(title)}</text>']
    for number, one in enumerate(rows):
        y = 44 + ROW * number
        drawn.append(f'<text x="10" y="{y + 20}">{html.escape(one.name)}</text>')
        for offset, (name, value) in enumerate((("cold", one.cold), ("warm", one.warm))):
            if value is None:
                continue
            width, place = WIDE * value / top, y + 18 * offset
            drawn.append(
                f'<rect class="{name}" fill="{COLOURS[name]}" x="{LEFT}" y="{place}" width="{width:.1f}" height="15"/>'
                f'<text x="{LEFT + width + 6:.1f}" y="{place + 12}">{name} {size(value)}/s</text>'
            )
    if disk:
        x = LEFT + WIDE * disk / top
        drawn.append(f'<line class="disk" stroke="#cc3311" x1="{x:.1f}" x2="{x:.1f}" y1="36" y2="{height - 24}"/>')
        drawn.append(f'<text x="{LEFT}" y="{height - 8}" fill="#cc3311">the disk itself: {size(disk)}/s</text>')
    label = html.escape(f"{title}: speed of each way to load, cold and warm", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 150} {height}" role="img" '
        f'aria-label="{label}" font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
        f'fill="#ffffff"/>{"".join(drawn)}</svg>\n'
    )
