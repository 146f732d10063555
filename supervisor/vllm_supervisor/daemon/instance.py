"""One configured engine: its files, directories, environment and command."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.config import Problem, Settings, load, load_env
from vllm_supervisor.core.cluster.verbs import not_here
from vllm_supervisor.core.endpoint import Endpoint, argument, child_environment, command_line, endpoint
from vllm_supervisor.core.engineflags import effective
from vllm_supervisor.core.held import holder_of, preload_line, serving_args
from vllm_supervisor.core.neighbours import chosen_gpus
from vllm_supervisor.core.ownership import START_ID, ray_marks
from vllm_supervisor.core.redact import is_secret, secrets_of, secrets_of_command

from .directories import runtime_directory, state_directory
from .node import as_node

CREDENTIALS = {"api-key": "VLLM_API_KEY", "hub-token": "HF_TOKEN"}
"""Credentials of the unit (LoadCredential=) and the variables in which the engine gets them."""

HEALTH_EVERY_S = 10.0
"""So often what holds weights is asked for its health, which costs nothing."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as the configuration and the unit describe it.

    Attributes:
        name: The configuration's file name without its ending.
        env: NAME.env and the unit's credentials.
        state_dir: History and incidents; kept over reboots.
        runtime_dir: Control socket and lock; gone with the boot.
        holds_weights: It is the unit that holds the weights of the instance that the file describes.
    """

    name: str
    config_path: Path
    settings: Settings
    env: Mapping[str, str]
    state_dir: Path
    runtime_dir: Path
    holds_weights: bool = False

    @property
    def partner(self) -> str:
        """The other half of the instance, with which it shares GPUs: who holds its weights, or who maps them."""
        return self.config_path.stem if self.holds_weights else holder_of(self.name)

    @property
    def socket_path(self) -> Path:
        """The control socket."""
        return self.runtime_dir / "control.sock"

    @property
    def history_path(self) -> Path:
        """The history's file."""
        return self.state_dir / "history.sqlite"

    @property
    def expects_engine_metrics(self) -> bool:
        """Whether the settings put the engine's own metrics on our page."""
        options = effective(self.settings.engine.command[1:], self.settings.engine.args)
        return self.settings.metrics.engine == "merge" and "disable-log-stats" not in options

    def endpoint(self) -> Endpoint:
        """The way to the engine."""
        engine = self.settings.engine
        if self.holds_weights:
            return endpoint(engine.host, engine.port, engine.served_model_name, {}, {})
        env = self.configured_env()
        return endpoint(engine.host, engine.port, engine.served_model_name, engine.args, env)

    def command(self, model: str, extra: Mapping[str, str | bool]) -> list[str]:
        """The engine's whole command line; `extra` holds arguments that we add ourselves."""
        engine = self.settings.engine
        if self.holds_weights:
            return preload_line(
                engine.command,
                model,
                served_model_name=engine.served_model_name,
                args={**engine.args, **extra},
                directory=str(self.runtime_dir),
                port=engine.port,
            )
        return command_line(
            engine.command,
            model,
            served_model_name=engine.served_model_name,
            host=engine.host,
            port=engine.port,
            args={**engine.args, **extra},
        )

    def configured_env(self) -> dict[str, str]:
        """The engine's environment as far as it is configured: NAME.env, [engine.env], and engine.gpus."""
        return {**self.env, **self.settings.engine.env, **self._gpu_env()}

    def _gpu_env(self) -> dict[str, str]:
        gpus = self.settings.engine.gpus
        if not gpus:
            return {}
        # Without this CUDA counts the fastest card first, and NVML (and nvidia-smi) by the bus.
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def gpus(self) -> tuple[str, ...] | None:
        """The GPUs that the engine may see, as they are written; None means all."""
        return chosen_gpus(self.configured_env())

    @property
    def on_ray(self) -> bool:
        """Whether Ray places the engine's workers, which then are children of Ray's."""
        return argument(self.settings.engine.args, "distributed-executor-backend") == "ray"

    def engine_environment(self, own: Mapping[str, str], start_id: str) -> dict[str, str]:
        """The engine's environment; `own` is ours."""
        marks = {START_ID: start_id, "SPT_NOENV": "1"}
        if self.on_ray:
            marks |= ray_marks(start_id, self.configured_env())
        settings = {**self.settings.engine.env, **self._gpu_env()}
        return child_environment(own, self.env, settings, marks)

    def secrets(self, own: Mapping[str, str]) -> list[str]:
        """Values that must never be written anywhere; `own` is our environment, which the engine inherits."""
        engine = self.settings.engine
        named = [own, self.env, engine.env, engine.args]
        return [*secrets_of_command(engine.command), *(secret for values in named for secret in secrets_of(values))]

    def not_here(self, verb: str, *, stops: bool = True) -> str:
        """Why a verb is refused on this node of a cluster, with the remedy; empty where it may be used."""
        cluster = self.settings.cluster
        head = cluster.nodes[0] if cluster.nodes else cluster.head
        return not_here(verb, nnodes=cluster.nnodes, rank=cluster.place, head=head, stops=stops)

    def config_hash(self) -> str:
        """Identifies what the engine is started with; starts of one hash are compared with each other."""
        engine = self.settings.engine.model_dump(mode="json")
        secret = {name for name in {**engine["env"], **self.env} if is_secret(name)}
        env = {name: value for name, value in {**self.env, **engine["env"]}.items() if name not in secret}
        text = json.dumps([{**engine, "env": env}], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_instance(
    config_path: Path,
    *,
    state_dir: Path | None = None,
    runtime_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    holds_weights: bool = False,
) -> Instance | list[Problem]:
    """The instance that a configuration file describes, or every problem of it and of its env file.

    With `holds_weights` it is the one that holds the weights of the other.
    """
    environ = os.environ if environ is None else environ
    settings = load(config_path)
    env_path = config_path.with_suffix(".env")
    env = load_env(env_path)
    problems = [*(settings if isinstance(settings, list) else []), *(env if isinstance(env, list) else [])]
    credentials = _credentials(environ)
    if not isinstance(settings, list) and not isinstance(env, list):
        problems += _gpus_twice(settings, env, env_path)
        node = as_node(settings, socket.gethostname(), config_path)
        settings, problems = (settings, [*problems, node]) if isinstance(node, Problem) else (node, problems)
    problems += credentials if isinstance(credentials, list) else []
    if problems or isinstance(settings, list) or isinstance(env, list) or isinstance(credentials, list):
        return problems
    name = holder_of(config_path.stem) if holds_weights else config_path.stem
    runtime_dir = runtime_dir or runtime_directory(name, environ)
    if holds_weights:
        if not settings.weights.held:
            return [Problem(str(config_path), "weights.held", "set it to true, or disable the unit of the weights")]
        settings = _of_the_holder(settings)
    elif settings.weights.held:
        settings = _of_the_engine(settings, runtime_dir.parent / holder_of(name))
    return Instance(
        name=name,
        config_path=config_path,
        settings=settings,
        env={**env, **credentials},
        state_dir=state_dir or state_directory(name, environ),
        runtime_dir=runtime_dir,
        holds_weights=holds_weights,
    )


def _of_the_engine(settings: Settings, directory: Path) -> Settings:
    """The settings of an engine whose weights are offered in a directory."""
    args = serving_args(settings.engine.args, str(directory))
    return settings.model_copy(update={"engine": settings.engine.model_copy(update={"args": args})})


def _of_the_holder(settings: Settings) -> Settings:
    """The settings of what holds the weights: it answers /health alone, and has no requests to finish."""
    weights = settings.weights
    return settings.model_copy(
        update={
            "engine": settings.engine.model_copy(update={"host": "127.0.0.1", "port": weights.health_port}),
            "metrics": settings.metrics.model_copy(update={"listen": weights.listen, "engine": "off"}),
            "readiness": settings.readiness.model_copy(update={"probe": "http"}),
            "stop": settings.stop.model_copy(update={"grace_s": 0.0, "drain_s": 0.0}),
            "liveness": settings.liveness.model_copy(update={"canary_every_s": HEALTH_EVERY_S}),
        }
    )


def _gpus_twice(settings: Settings, env: Mapping[str, str], path: Path) -> list[Problem]:
    if not settings.engine.gpus or "CUDA_VISIBLE_DEVICES" not in env:
        return []
    return [Problem(str(path), "CUDA_VISIBLE_DEVICES", "engine.gpus says the same: keep engine.gpus")]


def _credentials(environ: Mapping[str, str]) -> dict[str, str] | list[Problem]:
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        return {}
    found: dict[str, str] = {}
    for name, variable in CREDENTIALS.items():
        path = Path(directory) / name
        try:
            found[variable] = path.read_text().strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            return [Problem(str(path), "", f"the credential cannot be read: {error}")]
    return found


def cache_dirs(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the engine's compilers write (F7.3)."""
    home = environment.get("HOME", "")
    root = environment.get("VLLM_CACHE_ROOT") or (f"{environment.get('XDG_CACHE_HOME') or f'{home}/.cache'}/vllm")
    found = [Path(root) / "torch_compile_cache"]
    names = ("TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR")
    return (*found, *(Path(environment[name]) for name in names if environment.get(name)))
