"""Every setting as a line of text: for the reference page and for the example file.

The declarations in `settings` are the only source; nothing is described twice.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vllm_supervisor.core.phases import DEFAULT_BUDGETS, Phase

from .settings import Settings

_HEAD = (
    "A configuration is one TOML file, `NAME.toml`; the engine's environment lies beside it in `NAME.env`. Unknown "
    "keys are errors, and every key but `engine.model` has a default. All problems of a file are told at once: "
    "`vllm-supervisor check --config FILE`. Durations are seconds.\n"
)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting.

    Attributes:
        kind: Its type in words, with the values or limits that are allowed.
        default: As it is written in the file; empty when it must be set.
        meaning: What it does.
    """

    section: str
    name: str
    kind: str
    default: str
    meaning: str

    @property
    def key(self) -> str:
        """The dotted name."""
        return f"{self.section}.{self.name}"


def sections() -> Iterator[tuple[str, str]]:
    """Each table and what it is about, in the order of declaration."""
    for name, field in Settings.model_fields.items():
        model = typing.cast("type[BaseModel]", field.annotation)
        yield name, (model.__doc__ or "").strip().rstrip(".")


def rows(section: str) -> list[SettingRow]:
    """The settings of one table, in the order of declaration."""
    model = typing.cast("type[BaseModel]", Settings.model_fields[section].annotation)
    return [
        SettingRow(section, name, _kind(field), _default(section, name, field), field.description or "")
        for name, field in model.model_fields.items()
    ]


def settings_page() -> str:
    """The reference of the configuration file, in Markdown."""
    parts = [
        "# Settings\n",
        _HEAD,
    ]
    for section, about in sections():
        parts.append(f"## [{section}]\n\n{about}.\n")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|")
        for row in rows(section):
            default = f"`{_cell(row.default)}`" if row.default else "must be set"
            parts.append(f"| `{row.key}` | {_cell(row.kind)} | {default} | {_cell(row.meaning)} |")
        parts.append("")
    return "\n".join(parts)


def toml_value(value: Any) -> str:
    """A value as TOML writes it; JSON's scalars and lists are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _default(section: str, name: str, field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None and section == "stall":
        value = DEFAULT_BUDGETS[Phase(name.replace("_", "-"))]
    return toml_value(int(value) if isinstance(value, float) and value.is_integer() else value)


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    if typing.get_origin(annotation) in {types.UnionType, typing.Union}:
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    metadata = list(field.metadata)
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *more = typing.get_args(annotation)
        metadata += more
    if typing.get_origin(annotation) is Literal:
        return " or ".join(toml_value(value) for value in typing.get_args(annotation))
    return _name_of(annotation) + _limits(metadata)


def _name_of(annotation: Any) -> str:
    if typing.get_origin(annotation) is dict:
        return "table"
    if typing.get_origin(annotation) is list:
        if isinstance(typing.get_args(annotation)[0], type) and issubclass(typing.get_args(annotation)[0], BaseModel):
            return "list of tables"
        return "list of texts" if typing.get_args(annotation) == (str,) else "list of numbers or texts"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(annotation, "value")


def _limits(metadata: list[Any]) -> str:
    found = []
    for item in _flat(metadata):
        found += [
            f" {word} {limit:,.10g}".replace(",", "")
            for name, word in (("ge", "from"), ("gt", "above"), ("le", "to"))
            if (limit := getattr(item, name, None)) is not None
        ]
    return "".join(found)


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
