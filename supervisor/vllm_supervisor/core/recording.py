"""Events as text and back: the format of `run --record` and `replay`.

One JSON object a line; every value says its type, and dataclasses are rebuilt from their
annotations, so that a recording of the field becomes a test.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from enum import Enum
from types import ModuleType

from . import causes, events, facts, policy

_UNIONS = (typing.Union, type(int | str))
"""`Optional[int]` and `int | str` have different origins."""


def _dataclasses_of(module: ModuleType) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    }


_TYPES: dict[str, type] = {}
for _module in (causes, events, facts, policy):
    _TYPES.update(_dataclasses_of(_module))


def known_types(*modules: ModuleType) -> None:
    """Let the dataclasses of further modules be written and read, too."""
    for module in modules:
        _TYPES.update(_dataclasses_of(module))


def encode(value: object) -> object:
    """A JSON value for a dataclass of the core, or for what stands in one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        body = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **body}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def to_line(value: object, at: float) -> str:
    """One line of a recording: the time in monotonic seconds and the value."""
    return json.dumps({"at": at, "value": encode(value)}, separators=(",", ":"))


def from_line(line: str) -> tuple[float, object]:
    """The time and the value of one line.

    Raises:
        ValueError: the line is not one that `to_line` wrote.
    """
    try:
        raw = json.loads(line)
        at, value = raw["at"], raw["value"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("not a line of a recording") from None
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        raise ValueError("not a line of a recording: it has no time")
    try:
        return float(at), decode(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        kind = value.get("type") if isinstance(value, dict) else None
        known = kind if isinstance(kind, str) and kind in _TYPES else ""
        why = f"its {known} lacks something" if known else "its kind is not known here"
        raise ValueError(f"not a line of a recording: {why}") from None


def decode(raw: typing.Any) -> object:
    """The dataclass that a tagged JSON object stands for.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the object is not one that `encode` made.
    """
    made = _TYPES[raw["type"]]
    hints = typing.get_type_hints(made)
    values = {name: _shaped(raw[name], hint) for name, hint in hints.items() if name in raw}
    return made(**values)


def _shaped(raw: typing.Any, hint: typing.Any) -> typing.Any:
    if isinstance(raw, dict) and "type" in raw and raw["type"] in _TYPES:
        return decode(raw)
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in _UNIONS:
        if raw is None and type(None) in arguments:
            return None
        return _shaped_as_one_of(raw, [argument for argument in arguments if argument is not type(None)])
    if origin is tuple:
        kinds = arguments if len(arguments) != 2 or arguments[1] is not ... else (arguments[0],) * len(raw)
        return tuple(_shaped(item, kind) for item, kind in zip(raw, kinds, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {_shaped(key, arguments[0]): _shaped(item, arguments[1]) for key, item in raw.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(raw)
    if hint is float and isinstance(raw, int):
        return float(raw)
    if hint is int and isinstance(raw, str):
        return int(raw)  # a key of JSON is text
    return raw


def _shaped_as_one_of(raw: typing.Any, kinds: list[typing.Any]) -> typing.Any:
    if len(kinds) == 1:
        return _shaped(raw, kinds[0])
    return raw
