"""What is wrong with a configuration, in the words of the one who wrote it: keys, tables, values."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from .settings import Settings

_ARGUMENT = "must be text, a number, true, false, or a list of these; a table is written as JSON text"
_WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "this key has no default and must be set",
    "model_type": "must be a table",
    "string_too_short": "must not be empty",
    "string_type": "must be text in quotes",
    "too_short": "must not be empty",
}
"""By pydantic's kind of error. A kind that is not here keeps pydantic's words; a test tries every setting."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the configuration.

    Attributes:
        key: Dotted name of the setting, or the line for a syntax error; empty for the file itself.
        message: What is wrong and what would be right.
        denied: The file is there and may not be read by us.
    """

    file: str
    key: str
    message: str
    denied: bool = False

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.message}"


def problems(file: str, errors: Iterable[typing.Any]) -> list[Problem]:
    """The errors of pydantic in words, each once, in its order; what was only misspelt is not missed as well."""
    found: list[Problem] = []
    missing: list[Problem] = []
    meant: set[str] = set()
    for error in errors:
        names = [str(part) for part in error["loc"]]
        key = ".".join(names)
        if error["type"] == "extra_forbidden":
            nearest = _nearest(names)
            meant.add(nearest)
            found.append(Problem(file, key, _unknown(names, nearest, table=isinstance(error.get("input"), dict))))
        elif error["type"] == "missing":
            missing.append(Problem(file, key, _missing(key)))
        elif names[:2] == ["engine", "args"] and len(names) > 3:
            # Every kind of argument complains on its own; one sentence is enough.
            found.append(Problem(file, ".".join(names[:3]), _ARGUMENT))
        else:
            found.append(Problem(file, key, _words(error)))
    found += [problem for problem in missing if problem.key not in meant]
    return list(dict.fromkeys(found))


def all_keys() -> list[str]:
    """Every setting as a dotted name, in the order of declaration."""
    keys: list[str] = []
    for section, field in Settings.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += [f"{section}.{name}" for name in inner.model_fields]
    return keys


def _words(error: typing.Any) -> str:
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    template = _WORDS.get(error["type"])
    message = template.format_map(error.get("ctx") or {}) if template else error["msg"][0].lower() + error["msg"][1:]
    given = error.get("input")
    if given == "":
        return message
    if isinstance(given, bool):
        return f"{message}, but it is {str(given).lower()}"
    return f"{message}, but it is {given!r}" if isinstance(given, (str, int, float)) else message


def _missing(key: str) -> str:
    if key in Settings.model_fields:
        return f"this table has no default: write [{key}] and what belongs into it"
    return _WORDS["missing"]


def _unknown(names: Sequence[str], nearest: str, *, table: bool) -> str:
    kind = "table" if table else "key"
    if nearest:
        shown = f"[{nearest}]" if nearest in Settings.model_fields and table else nearest
        return f"unknown {kind}; did you mean {shown}?"
    here = _keys_of(names[:-1])
    return f"unknown {kind}; known here: {', '.join(sorted(here))}" if here else f"unknown {kind}"


def _nearest(names: Sequence[str]) -> str:
    """The key that a misspelt one is like: of the same table first, then of all; empty when there is none."""
    match = difflib.get_close_matches(names[-1], _keys_of(names[:-1]), n=1, cutoff=0.6)
    if match:
        return ".".join([*names[:-1], match[0]])
    everywhere = {key.rsplit(".", 1)[-1]: key for key in all_keys()}
    match = difflib.get_close_matches(names[-1], everywhere, n=1, cutoff=0.75)
    return everywhere[match[0]] if match else ""


def _keys_of(path: Sequence[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for name in path:
        if name.isdigit():
            continue  # a table of a list
        field = model.model_fields.get(name)
        inner = field.annotation if field is not None else None
        if typing.get_origin(inner) is list:
            (inner,) = typing.get_args(inner)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
