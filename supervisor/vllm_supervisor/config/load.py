"""Reading the configuration as a whole: either settings, or all problems at once."""

from __future__ import annotations

import difflib
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from .settings import Settings


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


def load(path: Path) -> Settings | list[Problem]:
    """The settings in `path`, or every problem that it has."""
    file = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return [Problem(file, "", "there is no such file; `vllm-supervisor init` writes one")]
    except IsADirectoryError:
        return [Problem(file, "", "this is a directory; name the configuration file in it")]
    except UnicodeDecodeError as error:
        return [Problem(file, f"byte {error.start}", "this is not UTF-8 text; save the file as UTF-8")]
    except OSError as error:
        denied = isinstance(error, PermissionError)
        return [Problem(file, "", f"cannot be read: {error.strerror}; let the service user read it", denied)]
    return parse(text, file)


def parse(text: str, file: str) -> Settings | list[Problem]:
    """The settings in `text`, or every problem that it has; `file` only names it in messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [Problem(file, "", f"not valid TOML: {error}")]
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        problems = [_problem(file, item) for item in error.errors(include_url=False)]
        return list(dict.fromkeys(problems))


_ARGUMENT = "must be text, a number, true, false, or a list of these; a table is written as JSON text"


def _problem(file: str, item: typing.Any) -> Problem:
    names = [str(part) for part in item["loc"]]
    if names[:2] == ["engine", "args"] and len(names) > 3:
        # Every kind of argument complains on its own; one sentence is enough.
        return Problem(file, ".".join(names[:3]), _ARGUMENT)
    key = ".".join(names)
    kind = item["type"]
    if kind == "extra_forbidden":
        return Problem(file, key, f"unknown key{_nearest(names)}")
    if kind == "missing":
        return Problem(file, key, "this key has no default and must be set")
    message = str(item["msg"]).removeprefix("Value error, ")
    given = item.get("input")
    if kind != "value_error":
        message = f"{message[0].lower()}{message[1:]}"
        if isinstance(given, (str, int, float, bool)):
            message += f", but it is {str(given).lower() if isinstance(given, bool) else repr(given)}"
    return Problem(file, key, message)


def _nearest(names: list[str]) -> str:
    """`; did you mean engine.port?` for a misspelt key, from the same table first, then from all."""
    here = _keys_of(names[:-1])
    match = difflib.get_close_matches(names[-1], here, n=1, cutoff=0.6)
    if match:
        return f"; did you mean {'.'.join([*names[:-1], match[0]])}?"
    everywhere = {key.rsplit(".", 1)[-1]: key for key in all_keys()}
    match = difflib.get_close_matches(names[-1], everywhere, n=1, cutoff=0.75)
    if match:
        return f"; did you mean {everywhere[match[0]]}?"
    return f"; known here: {', '.join(sorted(here))}" if here else ""


def _keys_of(path: list[str]) -> list[str]:
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


def all_keys() -> list[str]:
    """Every setting as a dotted name, in the order of declaration."""
    keys: list[str] = []
    for section, field in Settings.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += [f"{section}.{name}" for name in inner.model_fields]
    return keys
