"""Rules: arguments and configuration, parallel sizes, context length, KV cache."""

from __future__ import annotations

import re
from typing import Final

from .rule import Fields, Kind, Rule, Situation, Tier, rule


def _divisors(groups: Fields) -> Fields:
    heads = int(groups["heads"])
    fitting = [str(size) for size in (1, 2, 4, 8, 16, 32, 64) if heads % size == 0]
    return {"sizes": ", ".join(fitting)}


def _derived_limit(groups: Fields) -> Fields:
    limits = [float(groups[name]) for name in ("limit", "tokenizer") if groups.get(name, "None") != "None"]
    return {"most": str(int(min(limits)))} if limits else {}


def _from_config(situation: Situation, _: re.Match[str]) -> bool:
    return "validation" in situation.frames


def _not_model(_: Situation, match: re.Match[str]) -> bool:
    return not match["path"].endswith((".safetensors", ".json", ".bin", ".pt", ".model"))


_FLAGS = "compare the flags with `vllm serve --help=all`; starting again cannot help."

RULES: Final[tuple[Rule, ...]] = (
    # bad-arguments
    rule(
        "bad-arguments",
        r"(?:vllm|api_server\.py|__main__\.py|launch\.py)(?: [\w\-]{1,30}){0,2}: error: unrecognized arguments: "
        r"(?P<what>.+)",
        "unknown arguments {what}",
        "Remove or rename {what}, which this vLLM version does not know: " + _FLAGS,
        kinds=(Kind.NATIVE,),
        fatal=True,
    ),
    rule(
        "bad-arguments",
        r"(?:vllm|api_server\.py|__main__\.py|launch\.py)(?: [\w\-]{1,30}){0,2}: error: (?P<what>.+)",
        "{what}",
        "Correct the command line ({what}): " + _FLAGS,
        kinds=(Kind.NATIVE,),
        fatal=True,
    ),
    rule(
        "bad-arguments",
        r"(?:Error: )?--enable-auto-tool-choice requires --tool-call-parser",
        "--enable-auto-tool-choice lacks --tool-call-parser",
        "Add --tool-call-parser, or drop --enable-auto-tool-choice.",
    ),
    rule(
        "bad-arguments",
        r"'?\"?[Ii]nvalid (?P<kind>tool call|reasoning) parser: (?P<name>[\w.\-]+)",
        "unknown {kind} parser {name}",
        "Name a {kind} parser that this version has instead of {name} (`vllm serve --help=all` lists them).",
    ),
    rule(
        "bad-arguments",
        r"[Tt]he supplied chat template .{0,400}looks like a file path, but it failed to be opened",
        "the chat template cannot be opened",
        "Correct the path of --chat-template, or make the file readable for the service user.",
    ),
    rule(
        "bad-arguments",
        r"Load format [`'\"]?(?P<name>[\w\-]+)[`'\"]? is not supported|Unexpected extra config keys for load format "
        r"(?P<other>\w+)"
        r"|enable_multithread_load does not support",
        "load format or its options are not supported",
        "Correct --load-format and --model-loader-extra-config.",
    ),
    rule(
        "bad-arguments",
        r"max_model_len must be a positive integer",
        "max_model_len is not a positive number",
        "Give --max-model-len a positive number, or `auto`.",
    ),
    rule(
        "bad-arguments",
        r"Quantization method specified in the model config \((?P<has>[\w\-]+)\) does not match the quantization "
        r"method "
        r"specified in the `quantization` argument \((?P<asked>[\w\-]+)\)",
        "--quantization {asked} contradicts the checkpoint ({has})",
        "Drop --quantization {asked}: the checkpoint says {has} itself.",
    ),
    rule(
        "bad-arguments",
        r"(?:Failed to load the (?:model config|tokenizer)\. If the (?:model|tokenizer) is a custom"
        r"|[^'`]{0,300}(?:contains custom code which must be executed|requires you to execute the (?:configuration"
        r"|tokenizer|model|processor) file))",
        "the model brings code of its own",
        "Add --trust-remote-code if you trust the model's own code.",
    ),
    rule(
        "bad-arguments",
        r"Unknown vLLM environment variable detected: (?P<name>VLLM_\w+)",
        "unknown environment variable {name}",
        "Remove {name} from the engine's environment, or drop --fail-on-environ-validation.",
    ),
    rule(
        "bad-arguments",
        r"VLLM_PORT '(?P<value>.{0,200}?)' appears to be a URI",
        "VLLM_PORT is a URI",
        "Unset VLLM_PORT, or set it to a port number; Kubernetes sets it for a service that is called vllm.",
    ),
    rule(
        "bad-arguments",
        r"(?P<what>Input should be [^\[]{1,200}?|Extra inputs are not permitted|Unexpected keyword argument) \[type=",
        "a configuration value is refused: {what}",
        "Correct the configuration value that the line above names: {what}.",
        when=_from_config,
    ),
    rule(
        "configuration-invalid",
        r"\[Errno 13\] Permission denied: '(?P<path>[^']{1,300})'",
        "no permission for {path}",
        "Make {path} accessible for the service user, or set HOME and the cache variables to places that are.",
        when=_not_model,
    ),
    rule(
        "configuration-invalid",
        r"\[Errno 24\] Too many open files",
        "too many open files",
        "Raise the limit of open files to 65535 or more (LimitNOFILE= of the unit).",
    ),
    # tensor-parallel-invalid
    rule(
        "tensor-parallel-invalid",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        "{heads} attention heads cannot be split over {tp} GPUs",
        "Set --tensor-parallel-size to a divisor of the {heads} attention heads ({sizes}) that the host has GPUs for.",
        derive=_divisors,
    ),
    rule(
        "tensor-parallel-invalid",
        r"World size \((?P<world>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
        "{world} GPUs are asked for, {gpus} are visible",
        "Lower --tensor-parallel-size to {gpus} or less, or find out why only {gpus} of {world} GPUs are visible (a "
        "lost GPU looks like this).",
    ),
    rule(
        "tensor-parallel-invalid",
        r"Tensor parallel size.{0,80}larger than the number of available GPUs \((?P<gpus>\d+)\)",
        "more GPUs are asked for than the {gpus} that are visible",
        "Lower --tensor-parallel-size to {gpus} or less, or find out why no more GPUs are visible.",
    ),
    rule(
        "tensor-parallel-invalid",
        r"(?P<a>\d+) is not divisible by (?P<b>\d+)|(?:Weight |The )?(?:input|output)_(?:size"
        r"|partition_size).{0,200}is not divisible by"
        r"|(?:Total number of|Number of) .{0,60}must be divisible by (?:the )?tensor[ _-]parallel",
        "a layer cannot be split over this many GPUs",
        "Choose another --tensor-parallel-size: a layer of this model cannot be split by it (quantised blocks set "
        "limits too).",
    ),
    rule(
        "tensor-parallel-invalid",
        r"DP adjusted local rank (?P<rank>\d+) is out of bounds for (?P<gpus>\d+) devices|world_size \(\d+\) must be "
        r"equal to the"
        r"|CUDA error: invalid device ordinal|You don't have enough GPUs available|Cannot provide a placement group "
        r"requiring"
        r"|Current node has no GPU available|Pipeline parallelism is not supported for this model",
        "the parallel sizes ask for more than there is",
        "Check --tensor-parallel-size, --pipeline-parallel-size and CUDA_VISIBLE_DEVICES against the GPUs that are "
        "visible.",
    ),
    # max-model-len-too-long
    rule(
        "max-model-len-too-long",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:\w+=(?P<limit>[\d.]+|None))?(?: or model_max_length=(?P<tokenizer>[\d.]+|None))?",
        "max_model_len {asked} is more than the model was made for",
        "Lower --max-model-len from {asked} to at most {most}, the length that the model was made for (or `auto`).",
        plain="Lower --max-model-len to the length that the model was made for (or `auto`).",
        derive=_derived_limit,
    ),
    # kv-cache-too-small
    rule(
        "kv-cache-too-small",
        r"To serve at least one request with the models?'?s max seq len \((?P<asked>\d+)\), \(?(?P<need>[\d.]+) GiB "
        r"KV cache is needed, "
        r"which is larger than the available KV cache memory \((?P<have>[\d.]+) GiB\).{0,200}?estimated maximum "
        r"model length is\s+(?P<most>\d+)",
        "{asked} tokens need {need} GiB of KV cache, {have} GiB are there",
        "Lower --max-model-len to {most} or less (or `auto`), raise --gpu-memory-utilization, or use "
        "--kv-cache-dtype fp8.",
    ),
    rule(
        "kv-cache-too-small",
        r"To serve at least one request with the models?'?s max seq len \((?P<asked>\d+)\)",
        "no request of {asked} tokens fits the KV cache",
        "Lower --max-model-len below {asked} (or `auto`), raise --gpu-memory-utilization, or use --kv-cache-dtype fp8.",
    ),
    rule(
        "kv-cache-too-small",
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len: not enough GPU memory",
        "no memory is left for the KV cache",
        "Weights and activations fill the budget: raise --gpu-memory-utilization, lower --max-num-batched-tokens, or "
        "use more GPUs.",
    ),
    rule(
        "kv-cache-too-small",
        r"The model's max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that can be stored "
        r"in KV cache \((?P<most>\d+)\)",
        "{asked} tokens do not fit the KV cache of {most}",
        "Lower --max-model-len to {most} or less, or raise --gpu-memory-utilization.",
    ),
    # whatever else vLLM refuses while it validates its configuration; the last one, since it fits any text
    rule(
        "bad-arguments",
        r"(?P<what>[^\[]{1,300}?)(?: \[type=value_error.*)?$",
        "vLLM refuses its configuration: {what}",
        "Correct the arguments that vLLM refuses; starting again cannot help.",
        tier=Tier.VAGUE,
        when=lambda situation, _: "validation" in situation.frames and "value-error" in situation.frames,
    ),
)
