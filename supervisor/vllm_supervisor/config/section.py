"""What every table of the configuration has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Port = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Positive = Annotated[float, Field(gt=0, le=86_400)]


def _command(value: object) -> object:
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise ValueError('must be a list of words, such as ["/opt/vllm/bin/vllm", "serve"]')
    return value


Command = Annotated[list[str], BeforeValidator(_command)]


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("must be ADDRESS:PORT with a port of 0 to 65535, such as 127.0.0.1:9477")
    return value


Listen = Annotated[str, AfterValidator(_address)]


class Section(BaseModel):
    """A table of the file: unknown keys are refused, values cannot be changed afterwards.

    TOML has types of its own, so nothing is converted: a port of `true` would be port 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
