"""The line that says "ready", in the form of each front end and logging configuration."""

from __future__ import annotations

from dataclasses import replace

from .style import Line, Style


def server_lines(form: str, pid: int, style: Style) -> list[Line]:
    """Uvicorn's lines of a start that succeeded, or what another front end says instead."""
    if form == "rust":
        text = "2026-11-30T20:44:31.029114Z  INFO vllm_server: OpenAI server is ready to accept requests"
        return [Line("ready", "api", text + "\n", raw=True, stream=1)]
    texts = (f"Started server process [{pid}]", "Waiting for application startup.", "Application startup complete.")
    lines = [Line("ready", "api", f"INFO:     {text}", server=True) for text in texts]
    if form == "json":
        return [_raw_json(line, pid) for line in lines]
    if form == "prefixed" and not style.wrapped:
        return [replace(line, text=f"(APIServer pid={pid}) {line.text}\n", raw=True, stream=2) for line in lines]
    return lines


def _raw_json(line: Line, pid: int) -> Line:
    style = Style("0.32.0", "json", 1)
    return replace(line, text=style.render(line, pid).decode(), raw=True, stream=2)
