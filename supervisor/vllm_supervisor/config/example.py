"""A configuration file with every setting in it: those that are given, and the others as comments.

Made from the declarations, so that it always names all there is; what it says is valid as it is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .reference import SettingRow, rows, sections, toml_value

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument for the engine and why it is there; `active` is false for one that is only shown."""

    name: str
    value: Any
    why: str
    active: bool = True


def document(head: str, given: Mapping[str, Any], arguments: Sequence[Argument]) -> str:
    """A whole file.

    Args:
        head: What the file is for, in a few sentences.
        given: Values by dotted key (`engine.port`); all others are shown with their default.
        arguments: The table `engine.args`.
    """
    parts = [_comment(head)]
    for section, about in sections():
        parts.append(f"\n{_comment(about + '.')}\n[{section}]")
        plain = [row for row in rows(section) if row.key not in {"engine.args", "engine.env"}]
        parts += [_setting(row, given) for row in plain]
        if section == "engine":
            parts.append(_arguments(arguments))
    return "\n".join(parts) + "\n"


def _setting(row: SettingRow, given: Mapping[str, Any]) -> str:
    # A bare type says nothing that the default does not show; choices and limits do.
    allowed = f" ({row.kind})" if " " in row.kind and row.kind != "list of texts" else ""
    about = f"{row.meaning}{allowed}"
    if row.key in given:
        return f"{_comment(about)}\n{row.name} = {toml_value(given[row.key])}"
    return f"{_comment(about)}\n# {row.name} = {row.default}"


def _arguments(arguments: Sequence[Argument]) -> str:
    meanings = {row.name: row.meaning for row in rows("engine")}
    lines = ["", _comment(meanings["args"]), "[engine.args]"]
    for argument in arguments:
        off = "" if argument.active else "# "
        lines += [_comment(argument.why), f"{off}{argument.name} = {toml_value(argument.value)}"]
    return "\n".join([*lines, "", _comment(meanings["env"]), "[engine.env]"])


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, WIDTH, break_on_hyphens=False))
