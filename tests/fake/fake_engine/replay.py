"""A captured log as lines: every byte as it stands, at its own pace, from the process that it names."""

from __future__ import annotations

import re

from .style import Line

STAMP = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
PROCESS = re.compile(r"\((EngineCore\S*|VllmWorker\S*|Worker\S*)(?: rank=(\d+))? pid=")
RECORD = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d ")
ACCESS = re.compile(r'INFO:\s+\S+ - "')
READY = ("Application startup complete", "OpenAI server is ready to accept requests")
BEGINS = (
    ("ready", re.compile("|".join(READY))),
    ("starting-server", re.compile(r"Supported[ _]tasks|Starting vLLM (?:API )?server")),
    ("capturing-graphs", re.compile(r"Capturing CUDA graph|autotune|Autotun")),
    ("sizing-kv-cache", re.compile(r"Available KV cache memory|KV cache size:")),
    ("compiling", re.compile(r"torch\.compile|Dynamo bytecode|Warming up model for the compilation")),
    ("loading-weights", re.compile(r"Starting to load model|Loading model from scratch|checkpoint shards")),
    ("connecting", re.compile(r"Initializing a V1 LLM engine")),
    ("configuring", re.compile(r"Resolved architecture|Using max model len")),
)
SHARD = re.compile(r"checkpoint shards.*\| (\d+)/\d+")


def replayed(path: str, scale: float, workers: int) -> list[Line]:
    """The lines of a captured log; a second of the log lasts `scale` seconds."""
    with open(path, "rb") as file:  # noqa: PTH123
        text = file.read().decode("utf-8", "surrogateescape")
    lines: list[Line] = []
    phase, last = "launching", None
    for physical in re.findall(r"[^\n]*\n|[^\n]+$", text):
        found = STAMP.search(physical)
        now = _seconds(found) if found else last
        gap = max(0.0, (now - last) * scale) if now is not None and last is not None else 0.0
        last = now if now is not None else last
        phase = next((name for name, pattern in BEGINS if pattern.search(physical) and _after(name, phase)), phase)
        shard = SHARD.search(physical)
        lines.append(
            Line(
                phase,
                _who(physical, workers),
                physical,
                raw=True,
                stream=1 if RECORD.search(physical) or ACCESS.search(physical) else 2,
                gap=gap,
                shard=int(shard[1]) if shard else -1,
                server=any(ready in physical for ready in READY),
            )
        )
    return lines


def _after(name: str, phase: str) -> bool:
    order = [each for each, _ in reversed(BEGINS)]
    return phase not in order or order.index(name) > order.index(phase)


def _who(physical: str, workers: int) -> str:
    found = PROCESS.search(physical)
    if not found:
        return "api"
    if found[1].startswith("EngineCore"):
        return "core"
    rank = found[2] or (re.findall(r"TP(\d+)|VllmWorker-(\d+)", found[1]) or [("0", "")])[0]
    number = int(rank) if isinstance(rank, str) else int(rank[0] or rank[1])
    return f"w{min(number, workers - 1)}"


def _seconds(found: re.Match[str]) -> float:
    month, day, hour, minute, second = (int(part) for part in found.groups())
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)
