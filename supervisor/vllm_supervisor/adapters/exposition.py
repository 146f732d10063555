"""The text of /metrics: ours from a snapshot, and the engine's page behind it.

What cannot change is written once: a family's head, and a series' name with its labels. A test
compares the page with what the official client says of the same readings. Ours has no process_* and
python_* that would clash with the engine's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from vllm_supervisor.core.metrics import FULL_NAMES, METRICS, PREFIX
from vllm_supervisor.core.readings import readings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_supervisor.core.metrics import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LINE = (
    rb"(?:#[^\n]*+"
    rb'|[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\[^\n])*+")*+\})?+'
    rb"[ \t]++[-+]?+(?:[0-9.eE+-]++|NaN|Inf)(?:[ \t]++-?+[0-9]++)?+[ \t]*+"
    rb"|)\r?+\n"
)
_GOOD_LINE = re.compile(_LINE)
_GOOD_PAGE = re.compile(rb"(?:" + _LINE + rb")*+")
_OURS = re.compile(rb"(?:# (?:HELP|TYPE) )?(" + PREFIX.encode() + rb"[a-zA-Z0-9_:]*)")


_HEADS = {
    name: f"# HELP {metric.full_name} {metric.help}\n# TYPE {metric.full_name} {metric.kind}\n"
    for name, metric in METRICS.items()
}


def render(snapshot: Snapshot) -> bytes:
    """Our own families in the text format 0.0.4; a dead source has none."""
    parts: list[str] = []
    for metric, series in readings(snapshot):
        parts.append(_HEADS[metric.name])
        parts += [f"{_series(metric.name, labels)} {value!r}\n" for labels, value in series]
    return "".join(parts).encode()


@lru_cache(maxsize=4096)
def _series(name: str, values: tuple[str, ...]) -> str:
    """A series' name with its labels; eight GPUs have some 400."""
    metric = METRICS[name]
    labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in zip(metric.labels, values, strict=True))
    return f"{metric.full_name}{{{labels}}}" if labels else metric.full_name


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def merge(ours: bytes, engine: bytes) -> bytes:
    """Our page with the engine's behind it.

    Names are not rewritten. Left out of the engine's page: `# EOF`, families that are ours, and
    lines that are not the text format (a proxy's HTML, an answer cut off in the middle), because
    one such line makes Prometheus refuse the whole scrape.

    Args:
        ours: What `render` gave.
        engine: The body of the engine's own /metrics; may be empty.
    """
    suspicious = b"# EOF" in engine or PREFIX.encode() in engine or not _GOOD_PAGE.fullmatch(engine)
    return ours + (b"".join(_kept(engine)) if suspicious else engine)


def _kept(engine: bytes) -> Iterator[bytes]:
    """The lines of the engine's page that may stand behind ours."""
    for line in engine.splitlines(keepends=True):
        if line.startswith(b"# EOF") or not _GOOD_LINE.fullmatch(line):
            continue
        ours = _OURS.match(line)
        if ours is None or ours.group(1).decode() not in FULL_NAMES:
            yield line
