"""The text of /metrics: ours from a snapshot, and the engine's page behind it.

One custom collector over the snapshot, in a registry of its own: nothing global, and ours has no
process_* and python_* that would clash with the engine's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from vllm_supervisor.core.metrics import FULL_NAMES, PREFIX, Kind
from vllm_supervisor.core.readings import readings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric as Family

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


class SnapshotCollector(Collector):
    """The families of one snapshot, for a registry of the official client."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        """Every family that has a value; a dead source has none."""
        for metric, series in readings(self.snapshot):
            make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = make(metric.full_name, metric.help, labels=metric.labels)
            for labels, value in series:
                family.add_metric(labels, value)
            yield family


def registry_of(snapshot: Snapshot) -> CollectorRegistry:
    """A registry that holds nothing but the snapshot."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    return registry


def render(snapshot: Snapshot) -> bytes:
    """Our own families in the text format 0.0.4.

    The official client's `generate_latest` says the same, but checks every name and label anew at
    every scrape, which takes several times as long.
    """
    return "".join(_lines(registry_of(snapshot).collect())).encode()


def _lines(families: Iterable[Family]) -> Iterator[str]:
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}\n"
        for sample in family.samples:
            labels = ",".join([f'{key}="{_escaped(text)}"' for key, text in sample.labels.items()])
            yield f"{name}{{{labels}}} {sample.value!r}\n" if labels else f"{name} {sample.value!r}\n"


@lru_cache(maxsize=1024)
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
