"""The command line of `vllm serve`, as far as the fake needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

FLAGS = [
    "host",
    "port",
    "uds",
    "uvicorn-log-level",
    "disable-uvicorn-access-log",
    "disable-access-log-for-endpoints",
    "api-key",
    "ssl-keyfile",
    "ssl-certfile",
    "ssl-ca-certs",
    "ssl-cert-reqs",
    "enable-ssl-refresh",
    "root-path",
    "middleware",
    "shutdown-timeout",
    "disable-log-stats",
    "enable-server-load-tracking",
    "served-model-name",
    "model",
    "tokenizer",
    "trust-remote-code",
    "dtype",
    "max-model-len",
    "quantization",
    "revision",
    "tokenizer-mode",
    "load-format",
    "download-dir",
    "safetensors-load-strategy",
    "use-tqdm-on-load",
    "hf-overrides",
    "seed",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
    "kv-cache-dtype",
    "block-size",
    "enable-prefix-caching",
    "cpu-offload-gb",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "enable-expert-parallel",
    "distributed-executor-backend",
    "disable-custom-all-reduce",
    "max-num-batched-tokens",
    "max-num-seqs",
    "max-num-queued-reqs",
    "max-num-queued-tokens",
    "enable-chunked-prefill",
    "async-scheduling",
    "attention-backend",
    "enforce-eager",
    "compilation-config",
    "cudagraph-capture-sizes",
    "reasoning-parser",
    "tool-call-parser",
    "enable-auto-tool-choice",
    "chat-template",
    "limit-mm-per-prompt",
    "runner",
    "convert",
    "api-server-count",
    "generation-config",
    "override-generation-config",
    "additional-config",
    "enable-sleep-mode",
    "log-config-file",
    "logging-config",
    "enable-log-requests",
    "fail-on-environ-validation",
    "speculative-config",
    "lora-modules",
    "enable-lora",
]

BARE = {
    "disable-uvicorn-access-log", "enable-ssl-refresh", "disable-log-stats", "enable-server-load-tracking",
    "trust-remote-code", "use-tqdm-on-load", "enable-prefix-caching", "enable-expert-parallel",
    "disable-custom-all-reduce", "enable-chunked-prefill", "async-scheduling", "enforce-eager",
    "enable-auto-tool-choice", "enable-sleep-mode", "enable-log-requests", "fail-on-environ-validation", "enable-lora",
}  # fmt: skip
SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
}

USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ...
"""


@dataclass
class Arguments:
    """What was asked for on the command line.

    `values` holds every flag without its dashes, with all its values; a bare flag has none.
    """

    model: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def text(self, name: str, default: str = "") -> str:
        return (self.values.get(name) or [default])[-1]

    def number(self, name: str, default: int) -> int:
        return int(self.text(name, str(default)))

    def has(self, name: str) -> bool:
        return name in self.values


def parse(argv: list[str]) -> Arguments:
    """Reads what follows `serve`; flags may be written with `_` or `-`, with `=` or a blank."""
    result = Arguments()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name = SHORT.get(word, "")
        if not name and word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            head, dot, tail = name.partition(".")  # --logging-config.formatter json
            name = head.replace("_", "-") + dot + tail
            if equals:
                result.values.setdefault(name, []).append(value)
                continue
        if not name:
            result.model = result.model or word
            continue
        plain = name.removeprefix("no-").partition(".")[0]
        if plain not in FLAGS:
            result.unknown.append(word)
        values = result.values.setdefault(name, [])
        if name in BARE or name.startswith("no-"):
            continue
        while rest and not rest[0].startswith("--") and rest[0] not in SHORT:
            values.append(rest.pop(0))
            if name not in {"served-model-name", "api-key", "cudagraph-capture-sizes"}:
                break
    result.model = result.model or result.text("model")
    return result


def help_all() -> str:
    """What `vllm serve --help=all` lists, in argparse's layout."""
    lines = ["usage: vllm serve [model_tag] [options]", "", "positional arguments:", "  model_tag", "", "options:"]
    for name in FLAGS:
        upper = name.upper().replace("-", "_")
        lines.append(f"  --{name}, --no-{name}" if name in BARE else f"  --{name} {upper}")
        lines.append(f"                        The fake's words about {name.replace('-', ' ')}.")
    return "\n".join(lines) + "\n"
