"""The engine's options as numbers and words, whichever way the configuration writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_supervisor.core.engineflags import canonical, command_options
from vllm_supervisor.core.plan.weights import Parallel

from .observed import EngineView

_TRUE = {"1", "true", "yes", "on"}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_FACTORS = {"": 1, "k": 1000, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Options:
    """Every option that the engine will get, by canonical name."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether the option is given, and not as false."""
        return name in self.values and self.values[name] is not False

    def text(self, name: str, default: str = "") -> str:
        """The option as a word."""
        return str(self.values[name]) if self.has(name) and not isinstance(self.values[name], list) else default

    def number(self, name: str) -> int | None:
        """The option as a whole number, `128K` included; None when it is none (`auto`, `-1`)."""
        value = self.values.get(name)
        if isinstance(value, bool):
            return None
        if isinstance(value, int):
            return value if value > 0 else None
        match = _HUMAN.fullmatch(str(value)) if value is not None else None
        return int(float(match[1]) * _FACTORS[match[2]]) or None if match else None

    def fraction(self, name: str) -> float | None:
        """The option as a fraction; None when it is no number."""
        value = self.values.get(name)
        if isinstance(value, bool) or value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            return None

    def parallel(self) -> Parallel:
        """How the GPUs of this node work together."""
        local = self.number("data-parallel-size-local") or self.number("data-parallel-size") or 1
        return Parallel(
            self.number("tensor-parallel-size") or 1,
            self.number("pipeline-parallel-size") or 1,
            local,
            self.has("enable-expert-parallel"),
        )

    def workers_here(self) -> int:
        """Worker processes of tensor and pipeline parallelism on this machine; the engine divides them by its nodes."""
        parallel = self.parallel()
        return max(parallel.tensor * parallel.pipeline // (self.number("nnodes") or 1), 1)


def options(view: EngineView) -> Options:
    """The options of the command itself and of [engine.args]; the latter win, as the engine reads them last."""
    values: dict[str, Any] = dict(command_options(view.command[1:]))
    for name, value in view.args.items():
        key = canonical(name)
        if value is False:
            values.pop(key, None)
        elif "." not in name:
            values[key] = value
    return Options(values)


def env_is_on(view: EngineView, name: str) -> bool:
    """Whether a switch of the environment is on."""
    return view.env.get(name, "").strip().lower() in _TRUE


def env_is_off(view: EngineView, name: str) -> bool:
    """Whether a switch of the environment is set and off."""
    return name in view.env and view.env[name].strip().lower() in {"0", "false", "no", "off"}
