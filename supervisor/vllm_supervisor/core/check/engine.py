"""The engine's command: does it exist, can the service run it, does it know the options."""

from __future__ import annotations

from vllm_supervisor.core.engineflags import is_known, nearest

from .finding import Finding, refuse, warn
from .observed import EngineView, ObservedEngine

CONTAINERS = {"docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "kubectl", "crictl", "ctr"}
"""Programs that start the engine somewhere else, where neither signals nor processes reach it."""
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"}
_WRAPPERS = {"sudo", "env", "nice", "ionice", "taskset", "numactl", "stdbuf", "timeout", "setsid", "doas", "chrt"}


def check_command(view: EngineView) -> list[Finding]:
    """Refuse a command that starts a container, or none at all."""
    for word in view.command:
        name = word.rsplit("/", 1)[-1]
        if name in CONTAINERS:
            return [
                refuse(
                    "engine-command",
                    "configuration-invalid",
                    f"engine.command starts a container ({name}), whose processes and signals are out of our reach",
                    'install vLLM on the host and set command = ["/opt/vllm/bin/vllm", "serve"]',
                )
            ]
        if name not in _WRAPPERS and not word.startswith("-") and "=" not in word and not name.isdigit():
            break
    return []


def _check_program(view: EngineView, engine: ObservedEngine) -> list[Finding]:
    """Whether the command can start `vllm serve` at all, as far as its words and its program tell."""
    names = [word.rsplit("/", 1)[-1] for word in view.command]
    remedy = 'set command = ["/opt/vllm/bin/vllm", "serve"]'
    shown = " ".join(view.command)
    serves = any(name == "serve" or "api_server" in name for name in names[1:])
    if names[0] == "vllm" and not serves:
        return [refuse("engine-command", "configuration-invalid", f"engine.command `{shown}` lacks `serve`", remedy)]
    starts = any("vllm" in word for word in view.command) or any(
        name in _SHELLS or name.startswith("python") for name in names
    )
    if engine.native and not starts:
        return [
            refuse(
                "engine-command",
                "configuration-invalid",
                f"engine.command `{shown}` starts a program that is neither vLLM nor Python",
                f'{remedy}, or a script that ends in `exec /opt/vllm/bin/vllm serve "$@"`',
            )
        ]
    return []


def check_engine(view: EngineView, engine: ObservedEngine) -> list[Finding]:
    """Whether the engine can be run, and whether it knows every option."""
    found = [] if engine.problem else _check_program(view, engine)
    if engine.problem:
        sentence, _, remedy = engine.problem.partition("; ")
        found.append(
            refuse(
                "engine-command",
                "engine-not-executable",
                sentence,
                remedy or "make the environment anew with /usr/bin/python3",
            )
        )
    elif engine.version is None and any(word.rsplit("/", 1)[-1] == "vllm" for word in view.command[:1]):
        found.append(
            warn(
                "engine-version",
                f"no version of vLLM was found beside {view.command[0]}",
                "plans use cautious defaults; point engine.command into the environment that holds vLLM",
            )
        )
    if engine.flags:
        found += [
            _unknown(name, engine.flags, engine.version) for name in view.args if not is_known(name, engine.flags)
        ]
    return found


def _unknown(name: str, flags: frozenset[str], version: str | None) -> Finding:
    like = nearest(name, flags)
    remedy = f'write "{like}" instead' if like else "remove it from [engine.args]"
    engine = f"vLLM {version}" if version else "this engine"
    return refuse("engine-args", "bad-arguments", f"{engine} has no option --{name}", remedy)
