"""What every table of the configuration has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, le=86_400)]
Positive = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """A table of the file: unknown keys are refused, values cannot be changed afterwards.

    TOML has types of its own, so nothing is converted: a port of `true` would be port 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
