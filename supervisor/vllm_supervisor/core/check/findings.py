"""All checks in the order in which an operator would look: command, options, model, GPUs, machine."""

from __future__ import annotations

from . import arguments, engine, gpus, host, memory, model, neighbours, pcie, ray, readiness, weights
from .finding import Finding, Level
from .observed import EngineView, Observed, ObservedModel
from .settings import Options, options


def findings(view: EngineView, observed: Observed) -> tuple[Finding, ...]:
    """Everything that speaks against this start; refusals first."""
    asked = options(view)
    container = engine.check_command(view)
    if container:
        return tuple(container)
    found = [*readiness.check_readiness(view, asked), *arguments.check_arguments(view, asked)]
    found += ray.check_ray(view, asked, observed.engine)
    version = observed.engine.version if observed.engine else None
    found += weights.check_weights(view, asked, version, observed.held)
    if observed.engine is not None:
        found += engine.check_engine(view, observed.engine)
    if observed.model is not None:
        found += model.check_model(view, asked, observed.model)
        found += _consistency(view, asked, observed, observed.model, version)
    # By name first: that a GPU is held by some pid is the weaker word.
    mine = neighbours.needs_of(view.name, view)
    found += neighbours.check_neighbours(mine, observed.neighbours, observed.gpus)
    holders = observed.host.gpu_holders if observed.host else {}
    found += gpus.check_gpus(view, asked, observed.gpus, holders, version)
    if observed.host is not None:
        found += host.check_ports(view, asked, observed.host)
        found += host.check_limits(asked, observed.host)
        found += host.check_shm(asked, observed.host)
        found += host.check_caches(observed.host)
        if observed.gpus is not None and view.device == "cuda":
            found += pcie.check_pcie(view, asked, observed.gpus, observed.host)
    return tuple(sorted(found, key=lambda finding: finding.level is not Level.REFUSE))


def _consistency(
    view: EngineView, asked: Options, observed: Observed, seen: ObservedModel, version: str | None
) -> list[Finding]:
    shape = seen.shape
    if shape is None:
        return []
    found = [*model.check_split(asked, shape), *model.check_context(view, asked, shape)]
    found += model.check_cache_type(view, asked, shape, version, observed.gpus)
    if seen.tally is None or seen.problems or any(finding.level is Level.REFUSE for finding in found):
        return found
    if view.device != "cuda" or observed.gpus is None or not gpus.visible(view, observed.gpus):
        return found
    request = memory.plan_request(asked, observed.gpus, view, version, observed.measured)
    return found + memory.check_memory(shape, seen.tally, asked, request)
