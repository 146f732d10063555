"""The check as one call: look at everything, decide, and never raise.

It is the first phase of every start and the body of `vllm-supervisor check`. It blocks (files,
/proc, one short process), so the loop calls it in a worker thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vllm_supervisor.adapters import engine_info, holders, host, pcie_sysfs
from vllm_supervisor.adapters.binding import first_free_port, may_bind, unbindable
from vllm_supervisor.adapters.checkpoint import read_checkpoint
from vllm_supervisor.adapters.model_path import is_hub_name, locate
from vllm_supervisor.core.check.finding import Finding, warn
from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.observed import (
    EngineView,
    GpuObservation,
    Observed,
    ObservedEngine,
    ObservedHost,
    ObservedModel,
)
from vllm_supervisor.core.checkpoint import CheckpointError
from vllm_supervisor.core.heldfit import HeldSeen
from vllm_supervisor.core.neighbours import Neighbour
from vllm_supervisor.core.plan.request import Measured
from vllm_supervisor.core.plan.shape import read_shape
from vllm_supervisor.core.plan.weights import tally

HEADERS_DEADLINE_S = 5.0
"""Headers of 119 shards take about a second of an idle core; a dead disk must not hold a start up."""


def gather_and_check(
    view: EngineView,
    gpus: GpuObservation | None,
    service_user: str | None,
    *,
    measured: tuple[Measured, ...] = (),
    flags_cache: Path | None = None,
    neighbours: tuple[Neighbour, ...] = (),
    held: HeldSeen | None = None,
) -> tuple[Finding, ...]:
    """Every finding about this start.

    Args:
        view: The configured engine; its `env` is the engine's whole environment where that is known.
        gpus: The GPUs as read before; None when no driver answered.
        service_user: Whom to answer for; None is the caller.
        measured: Earlier starts of this model, the newest last.
        flags_cache: Directory that keeps the engine's options by version.
        neighbours: The other instances of this machine.
        held: What the unit says that holds the weights; None where there is none.
    """
    try:
        seen = gather(
            view,
            gpus,
            service_user,
            measured=measured,
            flags_cache=flags_cache,
            neighbours=neighbours,
            held=held,
        )
        return findings(view, seen)
    except Exception as problem:  # noqa: BLE001 - a bug of the check must not keep a model down
        return (warn("check", f"the check itself failed ({type(problem).__name__}: {problem})", "please report this"),)


def gather(
    view: EngineView,
    gpus: GpuObservation | None,
    service_user: str | None,
    *,
    measured: tuple[Measured, ...] = (),
    flags_cache: Path | None = None,
    neighbours: tuple[Neighbour, ...] = (),
    held: HeldSeen | None = None,
) -> Observed:
    """Look at engine, checkpoint, GPUs and machine."""
    env = dict(os.environ) | view.env
    user = host.find_user(service_user) or host.find_user(None)
    assert user is not None  # noqa: S101 - the caller always has an identity
    identity = (user.uid, user.gid) if user.uid != os.geteuid() else None
    return Observed(
        engine=_engine(view, env, identity, flags_cache),
        model=_model(view, env, user),
        host=_host(view, env, user, gpus, own=identity is None),
        gpus=gpus,
        measured=measured,
        neighbours=neighbours,
        held=held,
    )


def _engine(
    view: EngineView, env: Mapping[str, str], identity: tuple[int, int] | None, cache: Path | None
) -> ObservedEngine:
    program = engine_info.find_program(view.command, env)
    return ObservedEngine(
        executable=str(program) if program else None,
        problem=engine_info.runs(view.command, env, identity),
        version=engine_info.read_version(view.command, env),
        flags=engine_info.read_flags(view.command, env, cache),
        native=program is not None and engine_info.is_native(program),
        ray=engine_info.has_package("ray", view.command, env),
    )


def _model(view: EngineView, env: Mapping[str, str], user: host.User) -> ObservedModel:
    path = locate(view.model, env)
    if is_hub_name(view.model) and not path.is_dir() and "/" in view.model:
        return ObservedModel(path=str(path), hub=True)
    deadline = time.monotonic() + HEADERS_DEADLINE_S

    unreadable = host.unreadable([path, *sorted(path.glob("*"))], user) if os.path.isdir(path) else ()  # noqa: PTH112
    seen = read_checkpoint(path, lambda: time.monotonic() < deadline)
    model = ObservedModel(
        path=str(path),
        problems=tuple((problem.reason, problem.sentence) for problem in seen.problems),
        strays=seen.strays,
        tokenizer=seen.tokenizer,
        unreadable=unreadable,
        timed_out=not seen.complete,
    )
    if seen.config is None:
        return model
    try:
        shape = read_shape(seen.config, seen.quant_config)
    except CheckpointError as problem:
        # An architecture that we cannot read is not one that the engine cannot serve.
        return model if seen.problems else replace(model, unplanned=problem.sentence)
    return replace(model, shape=shape, tally=tally(seen.tensors, shape) if seen.complete else None)


def _host(
    view: EngineView, env: Mapping[str, str], user: host.User, gpus: GpuObservation | None, *, own: bool
) -> ObservedHost:
    shm = host.shared_memory()
    address, _, port = view.metrics_listen.rpartition(":")
    pids = [pid for gpu in gpus.gpus for pid, _ in gpu.processes] if gpus else []
    listens = address.strip("[]")
    return ObservedHost(
        unbindable=unbindable(view.host),
        metrics_unbindable=unbindable(listens),
        port_denied=own and not may_bind(view.port),
        port_needs_right=not own and user.uid != 0 and view.port < first_free_port(),
        port_holder=holders.port_holder(view.host, view.port),
        metrics_holder=holders.port_holder(listens, int(port)) if port.isdigit() else None,
        limits=host.limits() if own else {},
        shm_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        caches=host.cache_space(host.cache_directories(view.env if not own else env), user),
        gpu_holders=holders.gpu_holders(pids),
        pcie=pcie_sysfs.read_pcie() if gpus else {},
        memory_bytes=host.memory_bytes(),
    )
