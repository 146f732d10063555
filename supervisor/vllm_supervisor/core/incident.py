"""What an incident holds: from what is known of a failure to the texts of its files.

Pure: collecting is the daemon's, writing is an adapter's. Every text passes the redaction last, so
that nothing that is added here can forget it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .causes import Cause
from .redact import clean
from .words import duration

Redact = Callable[[str], str]

NAME: Final = re.compile(r"\d{8}T\d{6}Z-[a-z0-9\-]{1,60}?(?:\.\d{1,3})?")
"""The name of an incident's directory; nothing else is ever listed, shown, packed or removed."""

ENVIRONMENT: Final = re.compile(
    r"(?:VLLM|NCCL|CUDA|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|FLASHINFER|HF|TRANSFORMERS|SAFETENSORS|TOKENIZERS|OMP|MKL|GLOO"
    r"|NVIDIA|UCX|RAY|PYTHON|LD|XDG|CUDNN|CUBLAS|DG|TILELANG|SPT|VSUP)_?\w*|PATH|HOME|TMPDIR|LANG|LC_ALL|USER|VIRTUAL_ENV",
)
"""Inherited variables that bear on the engine; what else a machine has in its environment is left out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was collected about a failure.

    Attributes:
        cause: The verdict.
        began_at: When the start began, in seconds of the wall clock.
        at: When it failed, likewise.
        timeline: (phase, seconds after the begin of the start) of every phase entered.
        state: Figures, last activity, gates: anything that JSON can hold.
        evidence: (where it comes from, line) in the order in which it was seen.
        output: The last lines of all processes in their order.
        lines: The last lines of each process.
        configuration: Settings in force.
        command: The engine's command line.
        environment: The engine's whole environment.
        gpus: The GPU table, or None where no GPU is expected.
        processes: One line for each process, indented as a tree.
        kernel: The kernel's lines of that time, None where they cannot be read.
        versions: By component.
        stacks: Stacks of the processes, empty when there are none.
    """

    cause: Cause
    began_at: float
    at: float
    timeline: Sequence[tuple[str, float]] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    evidence: Sequence[tuple[str, str]] = ()
    output: Sequence[str] = ()
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: Any = None
    processes: Sequence[str] = ()
    kernel: Sequence[str] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    stacks: str = ""


def directory_name(stamp: str, reason: str, taken: Callable[[str], bool]) -> str:
    """The name of an incident's directory, which no other one has.

    Args:
        stamp: The time in UTC, as `20260521T130542Z`.
        reason: The slug of the cause.
        taken: Whether a name is in use.
    """
    plain = f"{stamp}-{reason}"
    for name in (plain, *(f"{plain}.{number}" for number in range(2, 1000))):
        if not taken(name):
            return name
    return plain


def files(facts: Facts, redact: Redact, limit: int) -> list[tuple[str, str]]:
    """The files of an incident, the most telling first: a disk that fills up in the middle keeps those.

    Args:
        facts: What is known.
        redact: Takes the secrets out of a text.
        limit: Characters for all of them together; lines of processes are cut from their begin.
    """
    cause = facts.cause
    verdict = {
        "sentence": cause.sentence(),
        "cause": {
            "reason": cause.reason,
            "class": cause.cause_class.value,
            "phase": cause.phase,
            "summary": cause.summary,
            "evidence": cause.evidence,
            "advice": cause.advice,
        },
        "began_at": round(facts.began_at, 3),
        "failed_at": round(facts.at, 3),
        **facts.state,
    }
    found = [
        ("verdict.json", _json(verdict, redact)),
        ("evidence.txt", _text([f"{where}: {line}" for where, line in facts.evidence], redact)),
        ("timeline.txt", _text(_timeline(facts), redact)),
        ("output.log", _text(_last(facts.output, limit // 4), redact)),
        ("versions.json", _json(facts.versions, redact)),
        ("config.json", _json(_configuration(facts, redact), redact)),
        ("processes.txt", _text(facts.processes, redact)),
    ]
    if facts.gpus is not None:
        found.append(("gpus.json", _json(facts.gpus, redact)))
    if facts.kernel is not None:
        found.append(("kernel.log", _text(facts.kernel, redact)))
    if facts.stacks:
        found.append(("stacks.txt", redact_lines(facts.stacks, redact) + "\n"))
    found = [(name, text) for name, text in found if text]
    left = max(limit - sum(len(text) for _, text in found), 0)
    share = left // max(len(facts.lines), 1)
    for name, lines in facts.lines.items():
        kept = _last(lines, share)
        if kept:
            found.append((f"output/{name}.log", _text(kept, redact)))
    return found


def _configuration(facts: Facts, redact: Redact) -> dict[str, Any]:
    own = facts.configuration.get("engine", {})
    chosen = own.get("env", {}) if isinstance(own, Mapping) else {}
    environment = {
        name: value
        for name, value in sorted(facts.environment.items())
        if name in chosen or ENVIRONMENT.fullmatch(name)
    }
    return {
        "settings": facts.configuration,
        "command": _command(facts.command, redact),
        "environment": environment,
    }


def _command(command: Sequence[str], redact: Redact) -> list[str]:
    """The command line; the value of an option whose name announces a secret is hidden even if nobody knows it."""
    shown: list[str] = []
    option = ""
    for word in command:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            shown.append(f"{option}={clean(value, redact, option.lstrip('-'))}" if equals else word)
        else:
            shown.append(clean(word, redact, option.lstrip("-")))
    return shown


def _timeline(facts: Facts) -> list[str]:
    rows = []
    for index, (phase, at) in enumerate(facts.timeline):
        end = facts.timeline[index + 1][1] if index + 1 < len(facts.timeline) else facts.at - facts.began_at
        rows.append(f"{at:10.3f} s  {phase:<18} {duration(max(end - at, 0.0))}")
    return rows


def process_tree(processes: Sequence[tuple[int, int, str]]) -> list[str]:
    """Lines of a tree.

    Args:
        processes: (pid, parent's pid, words) of each.
    """
    pids = {pid for pid, _, _ in processes}
    children: dict[int, list[tuple[int, str]]] = {}
    for pid, parent, words in sorted(processes):
        children.setdefault(parent if parent in pids and parent != pid else 0, []).append((pid, words))
    lines: list[str] = []

    def add(parent: int, depth: int) -> None:
        for pid, words in children.get(parent, []):
            lines.append(f"{'  ' * depth}{pid} {words}")
            if depth < len(processes):
                add(pid, depth + 1)

    add(0, 0)
    return lines


def redact_lines(text: str, redact: Redact) -> str:
    """Line by line: a secret's shape never spans two."""
    return "\n".join(redact(line) for line in text.splitlines())


def to_remove(sizes: Mapping[str, int], keep: int, limit: int) -> list[str]:
    """The incidents that have to go, the oldest first; names sort by time.

    Args:
        sizes: Bytes by name.
        keep: How many may stay.
        limit: Bytes that all together may take; the newest one stays whatever it takes.
    """
    names = sorted(name for name in sizes if NAME.fullmatch(name))
    gone: list[str] = []
    total = sum(sizes[name] for name in names)
    while names and (len(names) > keep or (total > limit and len(names) > 1)):
        oldest = names.pop(0)
        total -= sizes[oldest]
        gone.append(oldest)
    return gone


def _last(lines: Sequence[str], limit: int) -> list[str]:
    kept: list[str] = []
    for line in reversed(lines):
        limit -= len(line) + 1
        if limit < 0:
            break
        kept.append(line)
    return kept[::-1]


def _text(lines: Sequence[str], redact: Redact) -> str:
    return "".join(f"{redact(line)}\n" for line in lines)


def _json(value: Any, redact: Redact) -> str:
    return json.dumps(clean(value, redact), indent=2, ensure_ascii=False, default=str) + "\n"
