"""What nodes say to each other as bytes and back."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace

from vllm_supervisor.core.causes import REASONS, Cause
from vllm_supervisor.core.recording import decode, encode, known_types
from vllm_supervisor.core.redact import clean

from . import head, messages, secondary
from .messages import Report, Word

known_types(messages, head, secondary)


def to_bytes(message: Report | Word, redact: Callable[[str], str] = str) -> bytes:
    """One message as UTF-8 text; `redact` takes the secrets out of whatever it quotes."""
    return json.dumps(clean(encode(message), redact), separators=(",", ":")).encode()


def from_bytes(body: bytes) -> Report | Word:
    """The message that `to_bytes` wrote.

    A newer version may say more than this one knows, and an older one less: both are understood,
    so that the versions can be compared and a supervisor can be upgraded beside another.

    Raises:
        ValueError: it is none.
    """
    try:
        found = decode(json.loads(body))
        if isinstance(found, (Report, Word)) and _fits(found, type(found)):
            return _understood(found)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a message of a node: {error!r}") from error
    raise ValueError("not a message of a node")


def _fits(value: object, hint: typing.Any) -> bool:
    """Whether a value is of its declared type, down to the last field: it came from another machine."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, arguments[0]) and _fits(item, arguments[1]) for key, item in value.items()
        )
    if arguments:
        return any(_fits(value, one) for one in arguments)
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return isinstance(value, typing.cast("type", hint)) and all(
            _fits(getattr(value, one.name), hints[one.name]) for one in fields(hint)
        )
    return type(value) is hint


def _understood(message: Report | Word) -> Report | Word:
    """A reason that only another version knows becomes `unknown`; its sentence stays."""
    if isinstance(message, Report):
        return replace(message, fault=_known(message.fault))
    return replace(message, fate=_known(message.fate))


def _known(cause: Cause | None) -> Cause | None:
    if cause is None or cause.reason in REASONS:
        return cause
    return replace(cause, reason="unknown", summary=f"{cause.reason}: {cause.summary}")
