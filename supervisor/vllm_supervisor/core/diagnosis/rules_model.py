"""Rules: the model's files, its architecture, its quantisation, the kernels that it needs."""

from __future__ import annotations

import re
from typing import Final

from .rule import Fields, Rule, Situation, rule

_MISSING_FILE = re.compile(r"'[^']{1,400}'")


def _missing(groups: Fields) -> Fields:
    names = [name.strip("'").rsplit("/", 1)[-1] for name in _MISSING_FILE.findall(groups["files"])]
    return {"count": str(len(names)), "first": names[0]} if names else {}


def _capability(groups: Fields) -> Fields:
    return {name: f"{int(groups[name]) / 10:.1f}" for name in ("need", "has") if groups.get(name)}


def _loading(situation: Situation, _: re.Match[str]) -> bool:
    return situation.phase == "loading-weights" and "compile" not in situation.frames


def _weights(situation: Situation, _: re.Match[str]) -> bool:
    return situation.phase == "loading-weights" or "weights" in situation.frames


_FETCH = "fetch the model again and compare it with model.safetensors.index.json"

RULES: Final[tuple[Rule, ...]] = (
    # model-not-found
    rule(
        "model-not-found",
        r"Invalid repository ID or local directory specified: '(?P<path>[^']*)'",
        "no model at {path}",
        "Check that {path} exists, is mounted and holds a config.json that the service user can read, or correct the "
        "path.",
    ),
    rule(
        "model-not-found",
        r"Repo id must be in the form .{0,80}?: '(?P<path>[^']*)'|Repo id must use alphanumeric chars.{0,120}?: "
        r"'(?P<other>[^']*)'",
        "no model at {path}",
        "Check that {path} exists, is mounted and holds a config.json that the service user can read, or correct the "
        "path.",
        plain="Check that the model's path exists and is mounted, or correct it.",
    ),
    rule(
        "model-not-found",
        r"(?P<path>\S{1,300}) is not a local folder and is not a valid model identifier",
        "no model at {path}",
        "Check the path or the name of the model ({path}), and the HF_TOKEN if it is private.",
    ),
    rule(
        "model-not-found",
        r"(?:40[134] Client Error\b|Repository Not Found|Access to model .{1,200} is restricted|Cannot access gated "
        r"repo"
        r"|You are trying to access a gated repo|Access to this resource is disabled)",
        "the hub does not give out the model",
        "Check the model's name, accept its licence and give the service an HF_TOKEN that may read it, or use a "
        "local directory.",
    ),
    rule(
        "model-not-found",
        r"Cannot find an appropriate cached snapshot folder|Cannot find the requested files in the (?:disk|local) cache"
        r"|Cannot reach .{1,200}: offline mode is enabled|Can't load the configuration of|We couldn't connect to '",
        "the model is not in the cache and the hub is not reachable",
        "Fetch the model before the service starts, or correct its path; in offline mode nothing is downloaded.",
    ),
    rule(
        "model-not-found",
        r"\[Errno 13\] Permission denied: '(?P<path>[^']{1,300}\.(?:safetensors|json|bin|pt|model))'",
        "no permission for {path}",
        "Make {path} readable for the service user.",
    ),
    # checkpoint-incomplete
    rule(
        "checkpoint-incomplete",
        r"Weight files referenced in index but missing: (?P<files>\{.*)",
        "{count} files of the checkpoint are missing",
        "Fetch the {count} missing files ({first} first), which model.safetensors.index.json lists, then start again.",
        plain="Fetch the files named in the message, which model.safetensors.index.json lists, then start again.",
        derive=_missing,
    ),
    rule(
        "checkpoint-incomplete",
        r"Cannot find any model weights with [`'\"](?P<path>[^`'\"]{1,300})",
        "no weights in {path}",
        "Put the weights into {path} (only configuration is there), or correct the path.",
    ),
    rule(
        "checkpoint-incomplete",
        r"(?:\[Errno 2\] )?No such file or directory: [\"'](?P<path>[^\"']{1,400}\.(?:safetensors|bin|pt"
        r"|gguf)(?:\.index\.json)?)[\"']",
        "{path} is missing",
        "Fetch {path}, which belongs to the checkpoint, then start again.",
    ),
    rule(
        "checkpoint-incomplete",
        r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer|Can't load (?:image processor|feature "
        r"extractor) for",
        "files of the tokenizer or processor are missing",
        "Fetch the tokenizer and processor files of the model (tokenizer.json, tokenizer_config.json), then start "
        "again.",
    ),
    # checkpoint-corrupt
    rule(
        "checkpoint-corrupt",
        r"Error while deserializing(?: header)?: ?(?P<what>.{0,120})",
        "a shard is damaged: {what}",
        "Find the shard whose size or header does not match its index entry (it is cut short or a pointer file) and "
        "fetch it again.",
    ),
    rule(
        "checkpoint-corrupt",
        r"It looks like the config file at '(?P<path>[^']{1,300})' is not a valid JSON file",
        "{path} is not valid JSON",
        "Repair {path} or fetch it again.",
    ),
    rule(
        "checkpoint-corrupt",
        r"(?:PytorchStreamReader failed|invalid load key, |unpickling stack underflow|pickle data was truncated|Ran "
        r"out of input"
        r"|File is not a zip file|Invalid magic number; corrupt file)",
        "a weight file is damaged",
        "A weight file is cut short or no weight file at all: " + _FETCH + ".",
        when=_loading,
    ),
    # checkpoint-mismatch
    rule(
        "checkpoint-mismatch",
        r"Following weights were not initialized from checkpoint: (?P<names>.{1,120})",
        "weights are missing in the checkpoint",
        "The checkpoint lacks tensors that this model needs: its config.json and its shards do not belong together; "
        + _FETCH
        + ".",
    ),
    rule(
        "checkpoint-mismatch",
        r"There is no module or parameter named '(?P<name>[^']{1,200})'|Attempted to load weight .{1,120} into "
        r"parameter"
        r"|size mismatch for [\w.]{1,200}|The size of tensor a \(\d+\) must match the size of tensor b"
        r"|shape mismatch: |'?(?:language_model\.|model\.)?(?:model\.)?layers\.\d+\.[\w.]{1,200}'?$"
        r"|start \(\d+\) \+ length \(\d+\) exceeds dimension size|loaded_weight\.shape|param_data\.shape",
        "the checkpoint does not fit the model's configuration",
        "The tensors do not fit config.json (or this vLLM does not know this variant of the model): check that both "
        "are of one revision.",
        when=_weights,
    ),
    # unsupported-architecture
    rule(
        "unsupported-architecture",
        r"Model architectures? (?P<what>\[.{1,200}?\]|\S{1,100}) (?:are not supported for now|failed to be inspected"
        r"|is not supported|was supported in vLLM until|has no vLLM implementation)",
        "{what} is not supported by this vLLM",
        "Install a vLLM release whose model registry knows {what} (or serve another model); the installed one does "
        "not.",
    ),
    rule(
        "unsupported-architecture",
        r"(?P<what>\S{1,100}) has no vLLM implementation|[^'`]{0,200}is not supported in-tree anymore",
        "the architecture is not supported by this vLLM",
        "Install a vLLM release or a plugin that knows this architecture, or serve another model.",
    ),
    rule(
        "unsupported-architecture",
        r"The checkpoint you are trying to load has model type [`'\"](?P<what>[\w.\-]+)[`'\"]? but Transformers does "
        r"not recognize",
        "model type {what} is unknown to transformers",
        "Install a newer vLLM and transformers that know the model type {what}, or use --trust-remote-code if the "
        "model brings its code.",
    ),
    rule(
        "unsupported-architecture",
        r"Unrecognized (?:model|configuration class|processing class) in|Unrecognized configuration class",
        "the model's configuration is not recognised",
        "Check that config.json names a model_type that this vLLM knows.",
    ),
    # unsupported-quantization
    rule(
        "unsupported-quantization",
        r"The quantization method (?P<what>\S+) is not supported for the current GPU\. Minimum capability: "
        r"(?P<need>\d+)\. Current capability: (?P<has>\d+)",
        "{what} needs compute capability {need}, the GPU has {has}",
        "Use a checkpoint in a format that GPUs of compute capability {has} can run (or GPUs of {need} and up for "
        "{what}).",
        derive=_capability,
    ),
    rule(
        "unsupported-quantization",
        r"Unknown quantization method: [`'\"]?(?P<what>[\w.\-]+)|Invalid quantization method: (?P<other>\S+)",
        "quantisation {what} is unknown to this vLLM",
        "Install a vLLM release that knows the quantisation {what}, or use another checkpoint.",
        plain="Install a vLLM release that knows this quantisation, or use another checkpoint.",
    ),
    rule(
        "unsupported-quantization",
        r"(?P<what>\S{1,60}) is not supported for quantization method (?P<method>\S{1,60})\. Supported dtypes",
        "{method} cannot run in {what}",
        "Set --dtype to one of the types that the line lists for {method}.",
    ),
    rule(
        "unsupported-quantization",
        r"(?:\(')?Quantization scheme is not supported for (?:the current GPU|')|(?:\S+ )?quantization (?:method "
        r")?(?:\S+ )?is "
        r"(?:currently )?not supported"
        r"|No compressed-tensors compatible scheme was found|ModelOpt currently only supports|Unsupported (?:quant"
        r"|ModelOpt|quantization)",
        "the quantisation of this checkpoint is not supported here",
        "Use a checkpoint in another quantisation, or a vLLM and GPU that support this one.",
    ),
)
