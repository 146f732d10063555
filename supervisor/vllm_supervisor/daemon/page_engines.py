"""The part of the page that shows each of several engines."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from vllm_supervisor.core import several


def engines(status: Mapping[str, Any]) -> tuple[str, str, str]:
    """The card; empty, and then not shown, where one engine serves alone."""
    rows = several.rows(status)
    lines = "".join(f"<div><dt>engine {_text(label)}</dt><dd>{_said(*rest)}</dd></div>" for label, *rest in rows)
    return ("engines", "Engines", f"<dl>{lines}</dl>") if rows else ("engines", "", "")


def _said(running: str, waiting: str, usage: str, moved: str) -> str:
    text = f"{running} running, {waiting} waiting, KV cache {usage} used, "
    if moved.startswith("hung"):
        return f'{_text(text)}<span class="problem">{_text(moved)}</span>'
    return _text(f"{text}last moved {moved}")


def _text(value: str) -> str:
    return html.escape(value, quote=True)
