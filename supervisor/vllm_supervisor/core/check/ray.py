"""Ray as the engine's executor: what it needs, and what cannot work."""

from __future__ import annotations

from .finding import Finding, refuse, warn
from .observed import EngineView, ObservedEngine
from .settings import Options

_BACK = 'set distributed-executor-backend = "mp" (it also serves several nodes)'


def check_ray(view: EngineView, options: Options, engine: ObservedEngine | None) -> list[Finding]:
    """Refuse Ray where the engine cannot use it; nothing is said of other executors."""
    if options.text("distributed-executor-backend") != "ray":
        return []
    if view.device == "cpu":
        # vLLM 0.32: "current platform cpu does not support ray", after half a minute of loading.
        return [refuse("ray", "bad-arguments", "vLLM for the CPU does not support Ray", _BACK)]
    found = []
    if engine is not None and engine.executable and not engine.ray:
        python = engine.executable.rpartition("/")[0] + "/python"
        found.append(
            refuse(
                "ray",
                "bad-arguments",
                "Ray is not installed in the engine's environment (vLLM does not bring it along any more)",
                f"run {python} -m pip install 'ray[cgraph]', or {_BACK}",
            )
        )
    found.append(warn("ray", "Ray's workers are no children of ours and outlive the engine for a while", f"{_BACK}"))
    return found
