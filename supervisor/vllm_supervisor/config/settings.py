"""Every setting, declared once: type, default, limits, meaning and unit.

The reference page and the example file are generated from these declarations; unknown keys are
errors. All durations are seconds.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from vllm_supervisor.core.neighbours import same_port
from vllm_supervisor.core.readahead.amounts import parse_amount

from .cluster import Cluster, refuse_contradictions
from .questions import Smoke
from .section import Command, Listen, Port, Positive, Seconds, Section

Scalar = bool | int | float | str
ArgValue = Scalar | list[Scalar]


class Engine(Section):
    """The engine: what is run and with which arguments."""

    command: Command = Field(
        ["/opt/vllm/bin/vllm", "serve"],
        description="The engine's command; the model and the arguments are appended.",
    )
    model: str = Field(min_length=1, description="Directory of the checkpoint, or a model name of the hub.")
    served_model_name: str = Field("kimi", min_length=1, description="The name that clients ask for.")
    host: str = Field("127.0.0.1", min_length=1, description="Address that the engine listens on.")
    port: Port = Field(8000, description="Port that the engine listens on.")
    device: Literal["cuda", "cpu"] = Field("cuda", description='"cpu": no GPU is expected.')
    gpus: list[int | str] = Field(
        default_factory=list,
        description="The GPUs of this instance, by number (as nvidia-smi counts) or UUID; empty leaves it to the "
        "engine, which takes the first ones. Sets CUDA_VISIBLE_DEVICES for the engine; check, metrics and pages show "
        "these only.",
    )
    overlay: str = Field(
        "auto",
        min_length=1,
        description='"auto": serve through an overlay without FP8 KV keys where the GPUs need it; "off"; or a path.',
    )
    args: dict[str, ArgValue] = Field(
        default_factory=dict,
        description="Further arguments: `key = value` is `--key value`; true is a bare flag, false leaves it out, "
        "a list repeats it.",
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment of the engine; wins over NAME.env and the unit.",
    )

    @field_validator("args")
    @classmethod
    def _names(cls, value: dict[str, ArgValue]) -> dict[str, ArgValue]:
        for key in value:
            if key.startswith("-"):
                raise ValueError(f"write {key!r} without the leading dashes")
            if key.replace("_", "-") in {"host", "port", "served-model-name", "model"}:
                own = key.replace("-", "_")
                raise ValueError(f"{key!r} has a place of its own: set engine.{own}")
        return value

    @field_validator("gpus", mode="before")
    @classmethod
    def _gpus(cls, value: object) -> object:
        if value == []:
            return value
        words = value if isinstance(value, list) else []
        good = [isinstance(word, int) and not isinstance(word, bool) and word >= 0 for word in words]
        uuids = [isinstance(word, str) and word.startswith(("GPU-", "MIG-")) for word in words]
        if not words or not all(one or other for one, other in zip(good, uuids, strict=True)):
            raise ValueError('must be a list of GPU numbers or UUIDs, such as [0, 1] or ["GPU-4f0c..."]')
        if len(set(words)) < len(words):
            raise ValueError("names a GPU twice")
        return value

    @model_validator(mode="after")
    def _one_place_for_gpus(self) -> Self:
        if self.gpus and self.device == "cpu":
            raise ValueError('gpus needs device = "cuda"')
        if self.gpus and "CUDA_VISIBLE_DEVICES" in self.env:
            raise ValueError("gpus and CUDA_VISIBLE_DEVICES in engine.env say the same: keep gpus")
        return self


class Metrics(Section):
    """The supervisor's own HTTP port."""

    listen: Listen = Field("127.0.0.1:9477", description="Address and port of /metrics, /readyz, /healthz and /status.")
    engine: Literal["merge", "off"] = Field("merge", description="Re-export the engine's own metrics on the same port.")


class Load(Section):
    """How the weights come from the disk."""

    readahead: str = Field(
        "auto",
        description='Read the shards into memory while the engine still imports: "auto" as far as memory allows, and '
        'not where the engine does it or reads past the page cache; "off"; or a size such as "64GiB", which bounds '
        "what lies in memory ahead of the engine, and is read where auto would not.",
    )

    wait_s: Seconds = Field(
        1800.0,
        description="Longest wait for another instance of this machine to finish loading, when memory cannot cache "
        "both checkpoints; then it loads beside it. 0 never waits.",
    )

    @field_validator("readahead")
    @classmethod
    def _size(cls, value: str) -> str:
        if value not in {"auto", "off"}:
            try:
                parse_amount(value)
            except ValueError as problem:
                raise ValueError(f'must be "auto", "off" or a size: {problem}') from None
        return value


class Weights(Section):
    """Weights that a second unit holds on the GPUs (`vllm preload`), so that they survive the engine."""

    held: bool = Field(
        False,
        description="The unit NAME-weights.service (vllm-weights@NAME) holds the weights, and the engine maps them "
        "instead of loading. Needs vLLM 0.31 and CUDA; the engine never loads from disk by itself then.",
    )
    listen: Listen = Field(
        "127.0.0.1:9577", description="Address and port of /metrics, /readyz and /status of that unit."
    )
    health_port: Port = Field(9578, description="Port on the loopback where `vllm preload` answers /health.")


class Readiness(Section):
    """When the engine counts as ready."""

    probe: Literal["generate", "embed", "score", "http"] = Field(
        "generate",
        description='The request that must be answered before READY; "http" asks /health and /v1/models only.',
    )
    hidden_line_after_s: Positive = Field(
        60.0,
        description="An engine that answers and never prints its readiness line is given up after so long.",
    )
    answer_timeout_s: Positive = Field(100.0, description="Longest wait for the first real answer.")


class Stall(Section):
    """Longest time without any evidence of progress in each phase; the history refines the defaults."""

    launching: Positive | None = Field(None, description="Instead of 120 s.")
    configuring: Positive | None = Field(None, description="Instead of 120 s.")
    connecting: Positive | None = Field(None, description="Instead of 180 s.")
    loading_weights: Positive | None = Field(None, description="Instead of 120 s.")
    compiling: Positive | None = Field(None, description="Instead of 900 s.")
    sizing_kv_cache: Positive | None = Field(None, description="Instead of 300 s.")
    capturing_graphs: Positive | None = Field(None, description="Instead of 600 s.")
    starting_server: Positive | None = Field(None, description="Instead of 120 s.")
    verifying: Positive | None = Field(None, description="Instead of 120 s.")


class Retry(Section):
    """What happens after a transient failure."""

    max_attempts: int = Field(5, ge=1, le=1000, description="After so many failed starts in a row: exit 76.")
    first_wait_s: Seconds = Field(10.0, description="Pause before the second attempt; doubles with each further one.")
    max_wait_s: Seconds = Field(600.0, description="Longest pause.")


class Stop(Section):
    """How the engine is ended."""

    # The unit's TimeoutStopSec (90 s) runs from SIGTERM on, and is only extended once the drain begins.
    grace_s: float = Field(0.0, ge=0, le=60, description="/readyz says 503 for so long before the drain begins.")
    drain_s: Seconds = Field(30.0, description="Running requests may finish for so long.")
    kill_after_s: Positive = Field(20.0, description="SIGKILL so long after SIGTERM.")


class Liveness(Section):
    """How a ready engine is watched."""

    mode: Literal["restart", "report", "off"] = Field("restart", description="What a hang leads to.")
    hang_after_s: Positive = Field(60.0, description="No sign of life and no answer for so long is a hang.")
    canary_every_s: Positive = Field(300.0, description="An idle engine is asked for one token so often.")


class History(Section):
    """The record of starts."""

    keep: int = Field(500, ge=10, le=100_000, description="Starts that are kept.")


class Incident(Section):
    """What is saved of a failed start or a hang."""

    keep: int = Field(20, ge=0, le=10_000, description="Incidents that are kept.")
    max_mib: int = Field(64, ge=1, le=100_000, description="MiB that all incidents together may take.")


class Settings(Section):
    """The whole configuration of one instance."""

    engine: Engine
    metrics: Metrics = Metrics()
    load: Load = Load()
    weights: Weights = Weights()
    cluster: Cluster = Cluster()
    readiness: Readiness = Readiness()
    stall: Stall = Stall()
    retry: Retry = Retry()
    stop: Stop = Stop()
    liveness: Liveness = Liveness()
    smoke: Smoke = Smoke()
    history: History = History()
    incident: Incident = Incident()

    @model_validator(mode="after")
    def _smoke_needs_words(self) -> Self:
        if self.smoke.on_start == "require" and self.readiness.probe != "generate":
            raise ValueError('smoke.on_start = "require" needs readiness.probe = "generate": only words can be judged')
        return self

    @model_validator(mode="after")
    def _held_by_the_same_program(self) -> Self:
        if self.weights.held and self.engine.command[-1] != "serve":
            raise ValueError("weights.held needs an engine.command that ends with `serve`: it becomes `preload`")
        refuse_contradictions(self.cluster, self.engine.args, held=self.weights.held)
        return self

    @model_validator(mode="after")
    def _a_port_each(self) -> Self:
        if same_port(f"{self.engine.host}:{self.engine.port}", self.metrics.listen):
            raise ValueError(f"engine.port and metrics.listen both want port {self.engine.port}: give one another")
        return self
