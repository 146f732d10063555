"""What a re-execution of the supervisor carries over: everything that the new image cannot look up.

The engine, its pipes and the lock are carried as processes and descriptors; the rest travels as
one JSON text in an anonymous file, because it holds secrets of the engine's environment.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters.launcher import Engine
from vllm_supervisor.config.settings import Engine as EngineSettings
from vllm_supervisor.core import liveness, rates, state
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.rates import RateWindow
from vllm_supervisor.core.recording import decode, encode, known_types
from vllm_supervisor.core.state import State

if TYPE_CHECKING:
    from .build import Outlets
    from .instance import Instance
    from .perform import Parts

FORMAT = 1

known_types(state, liveness, rates)


class CarryError(Exception):
    """The carried state cannot be used by this version; the message says why."""


@dataclass(slots=True)
class Carried:
    """The state of a running start, as values and descriptor numbers."""

    state: State
    start_id: str
    task: str
    engine: dict[str, Any]
    env: dict[str, str]
    pipes: dict[str, int]
    lock: int
    history: int | None
    began_wall: float
    reloads: int
    generation: RateWindow
    prompt: RateWindow
    partial: dict[str, str]
    tail: list[str]
    lines: dict[str, int]
    segments: list[str]
    dropped: int
    notify_errors: int
    incident: str
    last_probe_s: float | None
    gpu_before: int | None
    readahead: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)

    def resumed(self, policy: Policy) -> State:
        """The carried state under the new policy; what belongs to this very start stays."""
        old = self.state.policy
        kept = replace(
            policy,
            attempt=old.attempt,
            wait_s=old.wait_s,
            last_reason=old.last_reason,
            engine_drains=old.engine_drains,
            nnodes=old.nnodes,
            node_rank=old.node_rank,
        )
        return replace(self.state, policy=kept)

    def applied_to(self, instance: Instance) -> Instance:
        """The instance with the settings that the running engine was started with."""
        engine = EngineSettings.model_validate(self.engine)
        return replace(instance, settings=instance.settings.model_copy(update={"engine": engine}), env=self.env)

    def restore(self, parts: Parts, outlets: Outlets) -> None:
        """Go on where the image before left off: read the pipes, await the engine."""
        parts.history.resume(self.history)
        parts.began_wall = self.began_wall
        parts.reloads = self.reloads + 1
        parts.incident = self.incident
        parts.last_probe_s = self.last_probe_s
        parts.gpu_before = self.gpu_before
        parts.reading.resume(self.readahead)
        parts.cluster.resume(self.cluster, self.state)
        parts.watch.generation, parts.watch.prompt = self.generation, self.prompt
        parts.watch.segments = set(self.segments)
        outlets.forwarder.dropped = self.dropped
        outlets.notifier.errors += self.notify_errors
        parts.run.tail.extend(self.tail)
        parts.run.lines = collections.Counter(self.lines)
        parts.run.preload(self.partial)
        # Only a ready engine is carried over.
        parts.run.scanner.go_on()
        if self.state.engine_pid is not None and self.state.engine_alive:
            parts.run.attach(Engine(self.state.engine_pid), self.pipes)


def changed_engine_settings(carried: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of engine settings that differ from what the running engine was started with."""
    names: list[str] = []
    for key in sorted({*carried, *now}):
        old, new = carried.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            names += [f"engine.{key}.{inner}" for inner in sorted({*old, *new}) if old.get(inner) != new.get(inner)]
        elif old != new:
            names.append(f"engine.{key}")
    return names


def to_text(carried: Carried) -> str:
    """The carried state as one JSON text."""
    values = {one.name: encode(getattr(carried, one.name)) for one in fields(Carried)}
    return json.dumps({"format": FORMAT, **values})


def from_text(text: str) -> Carried:
    """The carried state.

    Raises:
        CarryError: this version cannot go on from it.
    """
    try:
        raw = json.loads(text)
        if raw.pop("format") != FORMAT:
            raise CarryError("the running version keeps its state in another format")
        for name in ("state", "generation", "prompt"):
            raw[name] = decode(raw[name])
        # What an older version did not carry has a default; without one it is missed here.
        return Carried(**{one.name: raw[one.name] for one in fields(Carried) if one.name in raw})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CarryError(f"the carried state cannot be read: {error!r}") from error


def read_descriptor(descriptor: int) -> Carried:
    """The carried state from the anonymous file that the image before left open; it is closed.

    Raises:
        CarryError: this version cannot go on from it.
    """
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return from_text(file.read().decode())


__all__ = ["Carried", "CarryError", "changed_engine_settings", "from_text", "read_descriptor", "to_text"]
