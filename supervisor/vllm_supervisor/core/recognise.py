"""Which line of the engine's log belongs to which phase, and which figures it gives.

The wordings stand in `recognise_table`; this module applies them to a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .facts import Figure, FigureName
from .lines import Line, Source
from .phases import Phase
from .recognise_table import PATTERNS, Names

_F = FigureName
_FIRST_WORD = re.compile(r"(?:\[\w{1,32}\] )?([^\s:=]+)")
_TAG = re.compile(r"\[\w{1,32}\] ")
_BANNER = re.compile(r"[▀▄█ ]*█.*?\b(?:version +(?P<engine_version>\d[\w.+\-]*)|model +(?P<model>\S.*?))\s*$")
_CONFIG: Final[dict[FigureName, re.Pattern[str]]] = {
    _F.TENSOR_PARALLEL_SIZE: re.compile(r"\btensor_parallel_size=(\d+)"),
    _F.MAX_MODEL_LEN: re.compile(r"\bmax_seq_len=(\d+)"),
    _F.KV_CACHE_DTYPE: re.compile(r"\bkv_cache_dtype=([\w.]+)"),
    _F.QUANTIZATION: re.compile(r"\bquantization=([\w.\-]+)"),
}
_MODEL_IN_CONFIG = re.compile(r" with config: model='([^']+)'")
_TEXT: Final = frozenset(
    {
        _F.ENGINE_VERSION,
        _F.MODEL,
        _F.ARCHITECTURE,
        _F.QUANTIZATION,
        _F.KV_CACHE_DTYPE,
        _F.ATTENTION_BACKEND,
        _F.NCCL_VERSION,
    },
)
_FRAME = re.compile(
    r'  File "[^"]*", line \d+, in (?:create_engine_config|create_model_config|build_async_engine_client)\b'
)
_VALIDATION = re.compile(r"(?:pydantic_core\.)?\w*\.?ValidationError: \d+ validation errors? for \w+")


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a line says about the start: its phase, its figures."""

    phase: Phase | None
    figures: tuple[Figure, ...] = ()
    sizes_cache: bool = False
    banner: bool = False


def _figure(name: FigureName, text: str) -> Figure | None:
    if name in _TEXT:
        return Figure(name, text)
    try:
        return Figure(name, float(text.replace(",", "")))
    except ValueError:
        return None


def _figures(match: re.Match[str], names: Names) -> tuple[Figure, ...]:
    groups = match.groupdict()
    found = (_figure(name, groups[name.value]) for name in names if groups.get(name.value))
    return tuple(figure for figure in found if figure)


def _engine_config(message: str) -> tuple[Figure, ...]:
    """The figures in the engine's one-line dump of its configuration."""
    found = [
        figure
        for name, regex in _CONFIG.items()
        if (match := regex.search(message)) and match[1] != "None" and (figure := _figure(name, match[1]))
    ]
    if model := _MODEL_IN_CONFIG.search(message):
        found.append(Figure(_F.MODEL, model[1]))
    return tuple(found)


def recognise(line: Line) -> Recognised | None:
    """Look one peeled line up.

    Args:
        line: The line; progress bars are not looked at here.

    Returns:
        What it says, or None for the many lines that say nothing about a start.
    """
    message = line.message
    if message[:1] in " ▀▄█":
        if "█" in message and line.source is Source.VLLM and (banner := _BANNER.match(message)):
            figures = _figures(banner, (_F.ENGINE_VERSION, _F.MODEL))
            return Recognised(Phase.LAUNCHING, figures, banner=banner["engine_version"] is not None)
        return Recognised(Phase.CONFIGURING) if message[:6] == "  File" and _FRAME.match(message) else None
    if line.source is Source.BARE:
        return Recognised(Phase.CONFIGURING) if "ValidationError: " in message and _VALIDATION.match(message) else None
    first = _FIRST_WORD.match(message)
    if not first or not (patterns := PATTERNS.get(first[1])):
        return None
    if message[0] == "[" and (tag := _TAG.match(message)):
        message = message[tag.end() :]
    for pattern in patterns:
        if match := pattern.regex.match(message):
            figures = _figures(match, pattern.figures)
            if pattern.phase is Phase.CONNECTING and "with config: " in message:
                figures += _engine_config(message)
            banner_line = pattern.phase is Phase.LAUNCHING and _F.ENGINE_VERSION in pattern.figures
            return Recognised(pattern.phase, figures, pattern.sizes_cache, banner_line)
    return None
