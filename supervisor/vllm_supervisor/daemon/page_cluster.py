"""The part of the page that shows every node of a cluster."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from vllm_supervisor.core.plain import node_rows


def nodes(status: Mapping[str, Any]) -> tuple[str, str, str]:
    """The card; empty, and then not shown, where one machine serves alone."""
    rows = node_rows(status)
    if not rows:
        return "nodes", "", ""
    lines = "".join(
        f"<div><dt>{_text(name)} <small>{_text(host)}</small></dt><dd>{_said(phase, heard)}</dd></div>"
        for name, host, phase, heard in rows
    )
    return "nodes", "Nodes", f"<dl>{lines}</dl>"


def _said(phase: str, heard: str) -> str:
    words = _text(f"{phase}, heard {heard}" if heard not in {"here", "never"} else phase)
    return f'<span class="problem">{words}</span>' if phase == "missing" else words


def _text(value: str) -> str:
    return html.escape(value, quote=True)
