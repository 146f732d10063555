"""The checkpoint, and whether the options agree with it."""

from __future__ import annotations

import re

from vllm_supervisor.core import overlay
from vllm_supervisor.core.plan import engine as engine_facts
from vllm_supervisor.core.plan import refusals
from vllm_supervisor.core.plan.shape import Shape

from .finding import Finding, refuse, warn
from .observed import EngineView, GpuObservation, ObservedModel, least_capability
from .settings import Options, env_is_on

_NUMBERED = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")
_REMEDIES = {
    "model-not-found": "correct engine.model, or mount its disk (RequiresMountsFor= in the unit)",
    "checkpoint-incomplete": "finish the download: hf download MODEL --local-dir DIR",
    "checkpoint-corrupt": "download the file again",
    "checkpoint-mismatch": "download the model again, all of one revision",
    "download-incomplete": "fetch the real files: git lfs pull, or hf download",
}


def check_model(view: EngineView, options: Options, model: ObservedModel) -> list[Finding]:
    """The files: complete, whole, readable by the service."""
    if model.hub:
        return [
            warn(
                "model",
                f"{view.model} is not in the local hub cache, so that the engine has to download it while it starts",
                "download it before, and set engine.model to its directory",
            )
        ]
    found = [
        refuse(
            "model",
            reason,
            sentence.partition("; ")[0],
            sentence.partition("; ")[2] or _REMEDIES.get(reason, "download it again"),
        )
        for reason, sentence in model.problems
    ]
    if model.unreadable:
        more = f" and {len(model.unreadable) - 1} more" if len(model.unreadable) > 1 else ""
        found.append(
            refuse(
                "model",
                "model-not-found",
                f"the service user may not read {model.unreadable[0]}{more}",
                f"give it access: setfacl -R -m u:USER:rX {model.path}",
            )
        )
    for name in model.strays:
        seen = f"{name} lies beside the shards and no index names it"
        if _NUMBERED.fullmatch(name):
            found.append(refuse("model", "checkpoint-mismatch", seen, _REMEDIES["checkpoint-mismatch"]))
        else:
            found.append(warn("model", seen + "; the engine ignores it", f"remove {name} if nothing needs it"))
    if (
        not model.tokenizer
        and not options.has("tokenizer")
        and not options.has("skip-tokenizer-init")
        and not model.problems
    ):
        found.append(
            warn(
                "tokenizer",
                f"{model.path} holds no tokenizer; the engine may start and answer nonsense",
                "download its tokenizer files",
            )
        )
    if model.unplanned:
        found.append(refuse("model", "checkpoint-mismatch", model.unplanned, "download config.json again"))
    if model.timed_out:
        found.append(
            warn(
                "model",
                "some shards' headers could not be read in time",
                "check again when the disk is idle",
            )
        )
    return found


def check_split(options: Options, shape: Shape) -> list[Finding]:
    """Whether the model can be split as asked, and is asked for no more context than it has."""
    return [
        refuse(
            "parallel", "tensor-parallel-invalid", sentence, "see: vllm-supervisor plan MODEL for the sizes that work"
        )
        for sentence in refusals.structural(shape, options.parallel())
    ]


def check_context(view: EngineView, options: Options, shape: Shape) -> list[Finding]:
    """`User-specified max_model_len … is greater than the derived max_model_len`."""
    length = options.number("max-model-len")
    if length is None or length <= shape.context or env_is_on(view, "VLLM_ALLOW_LONG_MAX_MODEL_LEN"):
        return []
    if options.has("hf-overrides") or options.has("rope-scaling"):
        return []
    return [
        refuse(
            "context",
            "max-model-len-too-long",
            f"max-model-len = {length} is longer than the {shape.context} tokens that the model was made for",
            f"set max-model-len = {shape.context} or less",
        )
    ]


def check_cache_type(
    view: EngineView, options: Options, shape: Shape, version: str | None, gpus: GpuObservation | None
) -> list[Finding]:
    """The KV cache's type against engine and cards, and what the overlay will do about it."""
    capability = least_capability(gpus.gpus) if gpus else None
    release = engine_facts.parse_version(version)
    works = engine_facts.fp8_cache_works(shape, release, capability)
    dtype = options.text("kv-cache-dtype", "auto")
    cards = f"compute capability {capability[0]}.{capability[1]}" if capability else "these GPUs"
    if dtype.startswith("fp8") and works is False:
        seen = f"no attention backend of this engine keeps an FP8 KV cache on {cards}"
        return [refuse("kv-cache-dtype", "unsupported-kernel", seen, 'set kv-cache-dtype = "auto"')]
    if not shape.kv_scheme or dtype != "auto":
        return []
    if view.overlay == "off" and works is False:
        seen = f"the checkpoint asks for an FP8 KV cache, which this engine does not keep on {cards}"
        return [refuse("kv-cache-dtype", "unsupported-kernel", seen, 'set overlay = "auto"')]
    decision = overlay.decide(view.overlay, dtype, shape, release, capability)
    if decision.wanted and view.device == "cuda":
        seen = f"the engine is started on an overlay with a 16-bit KV cache, half as many tokens: {decision.why}"
        return [warn("overlay", seen, "nothing to do; a newer engine may keep FP8")]
    return []
