"""The part of the page that shows the memory of every GPU as a bar, with what else is known of it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from vllm_supervisor.core.words import size

from .page_svg import bar


def gpus(status: Mapping[str, Any]) -> tuple[str, str, str]:
    """The card: every GPU, also one that cannot be read."""
    found = status.get("gpus") or []
    if not found:
        return "gpus", "GPUs", "<p>None is read here.</p>"
    names = {str(gpu.get("name") or "") for gpu in found}
    # Eight times the same name would be most of what there is to read.
    common = names.pop() if len(names) == 1 else ""
    title = f"GPUs: {len(found)} × {_text(common)}" if common else "GPUs"
    return "gpus", title, f'<ul class="gpus" role="list">{"".join(_gpu(gpu, named=not common) for gpu in found)}</ul>'


def _gpu(gpu: Mapping[str, Any], *, named: bool) -> str:
    used, total, ours = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes"), gpu.get("engine_bytes")
    title = f"<strong>GPU {gpu['index']}</strong>"
    if named:
        title += f" <span>{_text(gpu.get('name') or '')}</span>"
    if used is None or not total:
        return f'<li>{title}<p class="problem">{_trouble(gpu)}</p></li>'
    words = f"{size(used)} of {size(total)}"
    if ours is not None:
        words += f", engine {size(ours)}"
    parts = (
        [("engine", ours / total), ("others", max(used - ours, 0) / total)]
        if ours is not None
        else [("others", used / total)]
    )
    busy, power, heat = (gpu.get(key) for key in ("utilization_ratio", "power_watts", "temperature_celsius"))
    more = [f"{busy * 100:.0f} % busy"] if busy is not None else []
    more += [f"{power:.0f} W"] if power is not None else []
    more += [f"{heat:.0f} °C"] if heat is not None else []
    drawn = bar(f"GPU {gpu['index']}: {words}", parts)
    return f"<li>{title}{drawn}<p>{words}</p><p>{', '.join(more)}</p></li>"


def _trouble(gpu: Mapping[str, Any]) -> str:
    why = gpu.get("trouble")
    return f"It cannot be read: {_text(why)}" if why else "It does not say how much memory is in use."


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
