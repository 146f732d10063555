"""The other instances of this machine: GPUs and ports that two of them would take."""

from __future__ import annotations

from vllm_supervisor.core.neighbours import Needs, Neighbour, Standing, chosen_gpus, common_gpus, listed, same_port
from vllm_supervisor.core.plan import engine as engine_facts

from .finding import Finding, refuse, warn
from .observed import EngineView, GpuObservation
from .settings import Options, options


def needs_of(name: str, view: EngineView) -> Needs:
    """What an instance takes, by its configuration."""
    asked = options(view)
    return Needs(
        name=name,
        gpus=chosen_gpus(view.env),
        count=asked.parallel().gpus // (asked.number("nnodes") or 1) if view.device == "cuda" else 0,
        share=_share(asked),
        engine="" if asked.has("uds") else f"{view.host}:{view.port}",
        metrics=view.metrics_listen,
        further=view.further,
    )


def _share(asked: Options) -> float:
    return asked.fraction("gpu-memory-utilization") or engine_facts.default_utilization(None)


def check_neighbours(mine: Needs, neighbours: tuple[Neighbour, ...], gpus: GpuObservation | None) -> list[Finding]:
    """Refuse what a running instance has; warn of what one that does not run would want.

    One that is enabled and stopped is no reason to refuse: at boot two such instances would refuse each other, and
    nothing would serve.
    """
    known = [(gpu.index, gpu.uuid) for gpu in gpus.gpus] if gpus is not None else []
    found: list[Finding] = []
    for neighbour in neighbours:
        other, words = neighbour.needs, f"instance {neighbour.needs.name}"
        shared = common_gpus(mine, other, known)
        taken = []
        if shared:
            taken.append((listed(shared), "gpu-busy", "give each its own: engine.gpus", "neighbour-gpus"))
        taken += [
            (thing, "port-in-use", f"set {setting} to another", "neighbour-port")
            for setting, thing in _ports(mine, other)
        ]
        if neighbour.standing is Standing.RUNNING:
            found += [
                refuse(
                    check,
                    reason,
                    f"{thing} {_is(thing)} taken by {words}, which runs",
                    f"{remedy}, or stop {other.name}",
                )
                for thing, reason, remedy, check in taken
            ]
        elif taken:
            things = " and ".join(thing for thing, *_ in taken)
            remedies = "; ".join(remedy for _, _, remedy, _ in taken)
            found.append(
                warn("neighbour", f"{things} {_is(things)} also wanted by {words}, {_rest(neighbour)}", remedies)
            )
        if mine.metrics and any(same_port(mine.metrics, there) for there in (other.metrics, other.engine) if there):
            found.append(
                warn(
                    "neighbour-metrics",
                    f"the metrics port {mine.metrics} is also that of {words}",
                    "set metrics.listen to another; the engine is started all the same",
                )
            )
    return found


def _ports(mine: Needs, other: Needs) -> list[tuple[str, str]]:
    """Each port of ours that the other one wants, too, once: our setting, and the port in words."""
    there = [("engine.port", other.engine), ("metrics.listen", other.metrics), *other.further]
    found = []
    for setting, listen in (("engine.port", mine.engine), *mine.further):
        its = next((name for name, theirs in there if listen and theirs and same_port(listen, theirs)), "")
        if its:
            known = {setting: "", "metrics.listen": " (there the metrics port)"}
            found.append((setting, f"port {_port(listen)}{known.get(its, f' (there {its})')}"))
    return found


def _rest(neighbour: Neighbour) -> str:
    if neighbour.standing is Standing.ENABLED:
        return "which is enabled: at the next boot the second of them is refused"
    return "which does not run"


def _is(thing: str) -> str:
    return "are" if thing.startswith("GPUs") or " and " in thing else "is"


def _port(listen: str) -> str:
    return listen.rpartition(":")[2]
