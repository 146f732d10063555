"""Settings that would hide from us that the engine is ready, progresses, or lives."""

from __future__ import annotations

from .finding import Finding, refuse, warn
from .observed import EngineView
from .settings import Options, env_is_off, env_is_on

_QUIET = {"WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"}
_PROGRESS = "phases, load progress and KV cache figures will not be known"


def check_readiness(view: EngineView, options: Options) -> list[Finding]:
    """What hides the readiness line is refused; what hides figures is told."""
    found = []
    uvicorn = options.text("uvicorn-log-level")
    if uvicorn.upper() in _QUIET:
        found.append(
            refuse(
                "readiness-line",
                "readiness-line-hidden",
                f'uvicorn-log-level = "{uvicorn}" removes the line "Application startup complete."',
                "remove it; disable-uvicorn-access-log = true silences the requests",
            )
        )
    found += [
        refuse(
            "readiness-line",
            "readiness-line-hidden",
            f"with {option} the engine opens no HTTP port and never says that it is ready",
            f"remove {option}; for several nodes the table [cluster] adds --headless where it belongs",
        )
        for option in ("headless", "grpc")
        if options.has(option)
    ]
    found += _hidden_figures(view, options)
    if options.has("disable-log-stats"):
        found.append(
            warn(
                "counters",
                "disable-log-stats removes every vllm:* metric, so that only canaries tell a hang",
                "remove disable-log-stats from [engine.args]",
            )
        )
    return found


def _hidden_figures(view: EngineView, options: Options) -> list[Finding]:
    found = [_own_logging(f"--{name}") for name in ("log-config-file", "logging-config") if options.has(name)]
    if view.env.get("VLLM_LOGGING_CONFIG_PATH"):
        found.append(_own_logging("VLLM_LOGGING_CONFIG_PATH"))
    level = view.env.get("VLLM_LOGGING_LEVEL", options.text("log-level"))
    if level.upper() in _QUIET:
        found.append(warn("log-level", f"the engine logs at {level} only: {_PROGRESS}", "log at INFO"))
    if env_is_off(view, "VLLM_CONFIGURE_LOGGING"):
        found.append(warn("log-level", f"VLLM_CONFIGURE_LOGGING=0: {_PROGRESS}", "remove it from the environment"))
    stream = view.env.get("VLLM_LOGGING_STREAM", "")
    if stream and stream not in {"ext://sys.stdout", "ext://sys.stderr"}:
        found.append(warn("log-level", f"the engine logs to {stream}: {_PROGRESS}", "remove VLLM_LOGGING_STREAM"))
    if options.has("no-use-tqdm-on-load") or env_is_on(view, "TQDM_DISABLE"):
        found.append(warn("load-progress", "progress bars are off, so no shard is counted", "switch them on again"))
    return found


def _own_logging(what: str) -> Finding:
    return warn(
        "log-level",
        f"{what} replaces the engine's logging and uvicorn's; it can hide that the engine is ready",
        'keep uvicorn\'s "Application startup complete." on stdout or stderr',
    )
