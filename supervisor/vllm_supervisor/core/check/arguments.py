"""Options and variables that the engine would choke on, or that undo what we promise."""

from __future__ import annotations

from .finding import Finding, refuse, warn
from .observed import EngineView
from .settings import Options, env_is_on

_SLOW_LOAD_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"


def check_arguments(view: EngineView, options: Options) -> list[Finding]:
    """Values out of range, traps of the environment, ways to start that we cannot supervise."""
    found = []
    share = options.fraction("gpu-memory-utilization")
    if options.has("gpu-memory-utilization") and (share is None or not 0 < share <= 1):
        value = options.values["gpu-memory-utilization"]
        found.append(_bad(f"gpu-memory-utilization = {value!r} is no fraction", "set it between 0 and 1, such as 0.90"))
    found += [
        _bad(f"{name} = {options.values[name]!r} is no number from 1 up", f"set {name} = 1 or more")
        for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
        if options.has(name) and options.number(name) is None
    ]
    port = view.env.get("VLLM_PORT", "")
    if "://" in port:
        found.append(
            _bad(f"VLLM_PORT={port} is an address, as Kubernetes sets it for a service called vllm", "unset VLLM_PORT")
        )
    if options.has("enable-auto-tool-choice") and not options.has("tool-call-parser"):
        found.append(_bad("enable-auto-tool-choice needs a tool-call-parser", "set tool-call-parser for this model"))
    found += _loading(view, options)
    if env_is_on(view, "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"):
        found.append(
            warn(
                "engine-death", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH leaves a server without an engine running", "unset it"
            )
        )
    if view.env.get("NCCL_GRAPH_FILE") and (share or 0.0) >= 0.95:
        found.append(
            warn(
                "nccl-graph",
                f"an NCCL graph file takes GPU memory, and gpu-memory-utilization {share:g} ran out of it with one",
                "set gpu-memory-utilization = 0.93",
            )
        )
    return found


def _loading(view: EngineView, options: Options) -> list[Finding]:
    """With several API server processes the engine itself gives up a load after 600 s."""
    servers = options.number("api-server-count") or options.number("data-parallel-size") or 1
    if servers > 1 and _SLOW_LOAD_TIMEOUT not in view.env:
        return [
            warn(
                "load-timeout",
                f"{servers} API servers wait for the engine for 600 s only, and a large model loads longer",
                f'set {_SLOW_LOAD_TIMEOUT} = "3600" in [engine.env]',
            )
        ]
    return []


def _bad(seen: str, remedy: str) -> Finding:
    return refuse("engine-args", "bad-arguments", seen, remedy)
