"""The table [smoke]: the questions with a known answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Positive, Section


class Question(Section):
    """A further question."""

    question: str = Field(min_length=1, description="What the engine is asked.")
    expect: str = Field(min_length=1, description="The answer must contain this, in any case.")


class Smoke(Section):
    """The questions with a known answer, asked once the engine can answer."""

    on_start: Literal["off", "report", "require"] = Field(
        "report",
        description='"report": asked after every READY; "require": READY waits for the right answer. Only where '
        'readiness.probe is "generate".',
    )
    question: str = Field(
        "What is the capital of France? Answer in one sentence.",
        min_length=1,
        description="What the engine is asked.",
    )
    expect: str = Field("Paris", min_length=1, description="The answer must contain this, in any case.")
    questions: list[Question] = Field(
        default_factory=list,
        description="Further questions, asked one after the other: a table `[[smoke.questions]]` each, with `question` "
        "and `expect`. Every answer must be right.",
    )
    max_tokens: int = Field(
        256, ge=1, le=65_536, description="Room for reasoning and answer; up to 8 times as much when it was too little."
    )
    timeout_s: Positive = Field(120.0, description="Longest wait for one answer.")
