"""Reading the configuration as a whole: either settings, or all problems at once."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from .problems import Problem, problems
from .settings import Settings


def load(path: Path) -> Settings | list[Problem]:
    """The settings in `path`, or every problem that it has."""
    file = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return [Problem(file, "", _absent(path))]
    except IsADirectoryError:
        return [Problem(file, "", "this is a directory; name the configuration file in it")]
    except UnicodeDecodeError as error:
        return [Problem(file, f"byte {error.start}", "this is not UTF-8 text; save the file as UTF-8")]
    except OSError as error:
        denied = isinstance(error, PermissionError)
        return [Problem(file, "", f"cannot be read: {error.strerror}; let the service user read it", denied)]
    return parse(text, file)


def holder_of(path: Path) -> Path | None:
    """The configuration that a unit which holds weights shares (NAME for NAME-weights); None when it is no such."""
    name = path.stem.removesuffix("-weights")
    other = path.with_name(f"{name}{path.suffix}")
    try:
        return other if name and name != path.stem and other.exists() else None
    except OSError:
        return None


def _absent(path: Path) -> str:
    other = holder_of(path)
    if other is None:
        return "there is no such file; `vllm-supervisor init` writes one"
    return f"there is no such file: {path.stem} holds the weights of {other.stem}, as {other} says; name {other.stem}"


def parse(text: str, file: str) -> Settings | list[Problem]:
    """The settings in `text`, or every problem that it has; `file` only names it in messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [Problem(file, "", f"not valid TOML: {error}")]
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        return problems(file, error.errors(include_url=False))
