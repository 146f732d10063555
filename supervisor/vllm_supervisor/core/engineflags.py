"""The long options that an engine knows, from its `--help=all` or, failing that, from its sources.

argparse accepts `_` for `-` (vLLM's parser), unambiguous beginnings, `--no-X` for switches, and
dotted keys of JSON options (`--compilation-config.mode`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "ep": "enable-expert-parallel",
    "q": "quantization",
    "cc": "compilation-config",
    "n": "nnodes",
    "r": "node-rank",
    "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dcp": "decode-context-parallel-size",
    "asc": "api-server-count",
    "sc": "speculative-config",
    "ac": "attention-config",
    "O": "optimization-level",
}
"""vLLM's short options by their letters."""

_HELP_OPTION = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*[A-Za-z0-9])")
_SOURCE_OPTION = re.compile(r"""["']--([A-Za-z][\w.-]*)["']""")
_FIELD = re.compile(r"^    ([a-z]\w*)\s*:\s", re.MULTILINE)


def flags_from_help(text: str) -> frozenset[str]:
    """The long options that a help text lists, without dashes; empty when it is no help text.

    Options are taken from the lines that begin with one, because descriptions mention others that
    may be gone.
    """
    found: set[str] = set()
    for line in text.splitlines():
        if line.lstrip().startswith("-"):
            found.update(match.replace("_", "-") for match in _HELP_OPTION.findall(line))
    return frozenset(found)


def flags_from_sources(texts: Iterable[str]) -> frozenset[str]:
    """A superset of the options that these sources declare.

    vLLM makes most options from the fields of its configuration classes, so every annotated field
    counts; what is not even among those is surely unknown.
    """
    found: set[str] = set()
    for text in texts:
        found.update(match.replace("_", "-") for match in _SOURCE_OPTION.findall(text))
        found.update(match.replace("_", "-") for match in _FIELD.findall(text))
    return frozenset(found)


def canonical(option: str) -> str:
    """`--tensor_parallel_size`, `-tp` and `tensor-parallel-size` as the last of these.

    `--tp` stays what it is, because the engine does not know it either.
    """
    base = option.lstrip("-").replace("_", "-").split(".", maxsplit=1)[0]
    is_short = option.startswith("-") and not option.startswith("--")
    return SHORT.get(base, base) if is_short else base


def is_known(option: str, flags: frozenset[str]) -> bool:
    """Whether the engine takes this option, as it is, negated, or as an unambiguous beginning."""
    name = canonical(option)
    if name in flags or name.removeprefix("no-") in flags:
        return True
    return sum(flag.startswith(name) for flag in flags) == 1


def nearest(option: str, flags: frozenset[str]) -> str:
    """The known option that is most like this one; empty when none is near."""
    name = canonical(option)
    if SHORT.get(name) in flags:
        return SHORT[name]
    ranked = sorted((_distance(name, flag), flag) for flag in flags if abs(len(flag) - len(name)) <= 6)
    return ranked[0][1] if ranked and ranked[0][0] <= max(1, len(name) // 3) else ""


def _distance(one: str, other: str) -> int:
    """Insertions, removals and exchanges of letters that lead from one to the other."""
    row = list(range(len(other) + 1))
    for line, letter in enumerate(one, 1):
        before, row[0] = row[0], line
        for column, against in enumerate(other, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (letter != against))
    return row[-1]


def command_options(command: Iterable[str]) -> dict[str, Any]:
    """Options that stand in the engine's command itself, by canonical name; the last one counts."""
    found: dict[str, Any] = {}
    name = ""
    for word in command:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            name, equals, value = word.partition("=")
            name = canonical(name)
            found[name] = value if equals else True
            if equals:
                name = ""
        elif name:
            found[name] = word
            name = ""
    return found


def effective(command: Iterable[str], args: Mapping[str, Any]) -> dict[str, Any]:
    """Every option that the engine will see, by canonical name; false ones are left out."""
    found = command_options(command)
    for option, value in args.items():
        name = canonical(option)
        if value is False:
            found.pop(name, None)
        else:
            found[name] = value
    return found
