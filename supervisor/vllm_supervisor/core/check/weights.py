"""Weights that another process holds on the GPUs (`vllm preload`, `--load-format ipc_cache`): what it needs.

Read in vLLM 0.32, model_executor/model_loader/weight_cache: the engine looks for sockets of its own user's
preload processes, by default in its own temporary directory; where it finds none it loads from disk.
"""

from __future__ import annotations

import json
from typing import Any

from vllm_supervisor.core.engineflags import canonical
from vllm_supervisor.core.held import LONGEST_DIRECTORY, SINCE, units_of
from vllm_supervisor.core.heldfit import HeldSeen
from vllm_supervisor.core.plan import engine as engine_facts

from .finding import Finding, refuse, warn
from .observed import ArgValue, EngineView
from .settings import Options

_EXTRA = "model-loader-extra-config"
WAITS_S = 300
"""So long vLLM waits for the sockets of what holds the weights."""

_BACK = "remove load-format = ipc_cache"


def held_elsewhere(options: Options) -> bool:
    """Whether the engine takes its weights from processes that hold them on the GPUs."""
    return options.text("load-format").lower() == "ipc_cache"


def check_weights(
    view: EngineView, options: Options, version: str | None, held: HeldSeen | None = None
) -> list[Finding]:
    """Refuse what the engine refuses after its imports; tell what would load from disk without a word."""
    if not held_elsewhere(options) and not view.weights:
        return []
    back = _BACK if not view.weights else "set weights.held = false"
    if view.device != "cuda":
        return [_bad("ipc_cache shares memory of GPUs, and this engine runs on the CPU", back)]
    release = engine_facts.parse_version(version)
    if release is not None and release < SINCE:
        return [_bad(f"vLLM {version} has no `vllm preload` that could hold the weights", f"use 0.31, or {back}")]
    found = []
    if options.has("enable-sleep-mode"):
        found.append(
            _bad("sleep mode cannot free weights that another process holds", f"remove enable-sleep-mode, or {back}")
        )
    if view.weights == "holder":
        return found
    found += _held(held, view.name)
    extra = _extra(view, options)
    directory = str((extra or {}).get("socket_dir") or "")
    if len(directory.encode()) > LONGEST_DIRECTORY:
        seen = f"sockets in {directory} have longer paths than the kernel takes"
        found.append(_bad(seen, f"shorten it to {LONGEST_DIRECTORY} bytes, as by a shorter name of the instance"))
    if extra is None:
        return [*found, _bad(f"{_EXTRA} is no JSON object", f'write {_EXTRA} = \'{{"socket_dir": "DIRECTORY"}}\'')]
    if not extra.get("socket_dir") and not extra.get("socket_path"):
        found.append(
            warn(
                "weights",
                "the engine looks for the sockets of vllm preload in its own TMPDIR, which the unit keeps private",
                f"name a directory that both see: socket_dir in {_EXTRA} and vllm preload --weight-cache-socket-dir",
            )
        )
    if extra.get("fallback", True) is not False:
        found.append(
            warn(
                "weights",
                "without vllm preload, or with one of other options, the engine loads from disk without an error",
                f'set "fallback": false in {_EXTRA}; it then waits for the weights for 300 s',
            )
        )
    return found


def _held(held: HeldSeen | None, name: str) -> list[Finding]:
    """The unit that holds the weights, as it stands now: it may still come, so this is no refusal."""
    if held is None:
        return []
    if not held.ready:
        seen = f"{held.name} {'does not hold all weights yet' if held.running else 'is not running'}"
        units = " or ".join(unit.removesuffix(".service") for unit in units_of(name))
        remedy = f"the engine waits {WAITS_S} s for them: start {units}, see `vllm-supervisor status {held.name}`"
        return [warn("weights", seen, remedy)]
    if held.differing:
        seen = f"{held.name} holds weights of other settings ({', '.join(held.differing)}), which the engine may refuse"
        return [warn("weights", seen, "stop this instance and restart the one that holds the weights")]
    return []


def _extra(view: EngineView, options: Options) -> dict[str, Any] | None:
    """The loader's own options, from JSON and from dotted names; None when they are none."""
    try:
        extra = json.loads(options.text(_EXTRA, "{}"))
    except ValueError:
        return None
    if not isinstance(extra, dict):
        return None
    for name, value in view.args.items():
        group, _, key = name.partition(".")
        if canonical(group) == _EXTRA and key and value is not False:  # False leaves the option out
            extra[key] = _value(value)
    return extra


def _value(given: ArgValue) -> Any:
    """A dotted option as the engine reads it: JSON where it is some, else a word."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _bad(seen: str, remedy: str) -> Finding:
    return refuse("weights", "bad-arguments", seen, remedy)
