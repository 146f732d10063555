"""The part of the page that names the other instances of the machine, with links to their pages."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from vllm_supervisor.core.neighbours import WILDCARDS


def neighbours(status: Mapping[str, Any]) -> tuple[str, str, str]:
    """The card; empty, and then not shown, where no other instance runs: one that starts later needs a place."""
    others = status.get("neighbours") or []
    if not others:
        return "neighbours", "", ""
    rows = "".join(f"<div><dt>{_name(other)}</dt><dd>{_text(_sentence(other))}</dd></div>" for other in others)
    return "neighbours", "Also on this machine", f"<dl>{rows}</dl>"


def _name(other: Mapping[str, Any]) -> str:
    name, listen = _text(other["needs"]["name"]), str(other["needs"].get("metrics") or "")
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or port == "0":
        return name
    address = "127.0.0.1" if host.strip("[]") in WILDCARDS else host
    return f'<a href="http://{_text(address)}:{port}/">{name}</a>'


def _sentence(other: Mapping[str, Any]) -> str:
    return str((other.get("page") or {}).get("status") or "running")


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
