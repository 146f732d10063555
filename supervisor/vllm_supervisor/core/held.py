"""Weights that a second unit holds on the GPUs: the arguments of both sides, what it costs, what it rules out.

Read in vLLM 0.32, entrypoints/cli/preload.py and model_executor/model_loader/weight_cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .endpoint import Args, Scalar, command_line
from .engineflags import canonical

SINCE = (0, 31, 0)
"""The first vLLM with `vllm preload`."""

SUFFIX = "-weights"
"""What the holder's name has behind the instance's."""

LONGEST_DIRECTORY = 107 - len("/vllm_weight_cache__draft.sock") - 32
"""A socket's path has 107 bytes at most; vLLM puts 32 digits of the GPU's name into it (protocol.py)."""

CONTEXT_MIB = 518
"""What a second process costs on a GPU besides the weights: its CUDA context (one H200, driver 580, nothing but
an allocation). NCCL and PyTorch take more."""

RULES_OUT = (
    "sleep mode; another load-format for the engine itself; quantisations that vLLM cannot take processed; CPUs; and "
    "another model, vLLM, parallel size or data type without a restart of the weights' unit"
)

_LOADING = frozenset({"load-format", "model-loader-extra-config"})

SERVER_ONLY = frozenset(
    {
        "allow-credentials",
        "allowed-headers",
        "allowed-methods",
        "allowed-origins",
        "anthropic-disabled-thinking-effort",
        "api-key",
        "api-server-count",
        "chat-template",
        "chat-template-content-format",
        "cohere-format",
        "cohere-is-reasoning-model",
        "config",
        "data-parallel-supervisor-port",
        "default-chat-template-kwargs",
        "disable-access-log-for-endpoints",
        "disable-fastapi-docs",
        "disable-uvicorn-access-log",
        "dp-supervisor-probe-failure-threshold",
        "dp-supervisor-probe-interval-s",
        "dp-supervisor-probe-timeout-s",
        "enable-auto-tool-choice",
        "enable-flash-late-interaction",
        "enable-force-include-usage",
        "enable-log-deltas",
        "enable-log-outputs",
        "enable-log-requests",
        "enable-offline-docs",
        "enable-per-request-metrics",
        "enable-prompt-tokens-details",
        "enable-request-id-headers",
        "enable-scale-out",
        "enable-server-load-tracking",
        "enable-ssl-refresh",
        "enable-tokenizer-info-endpoint",
        "exclude-tools-when-tool-choice-none",
        "fingerprint-mode",
        "fingerprint-value",
        "grpc",
        "grpc-port",
        "h11-max-header-count",
        "h11-max-incomplete-event-size",
        "headless",
        "host",
        "log-error-stack",
        "lora-modules",
        "max-log-len",
        "middleware",
        "port",
        "response-role",
        "return-tokens-as-token-ids",
        "root-path",
        "sse-keep-alive-interval",
        "ssl-ca-certs",
        "ssl-cert-reqs",
        "ssl-certfile",
        "ssl-ciphers",
        "ssl-keyfile",
        "tokens-only",
        "tool-call-parser",
        "tool-parser-plugin",
        "tool-server",
        "tool-strict-level",
        "trust-request-chat-template",
        "trust-request-mm-kwargs",
        "uds",
        "uvicorn-log-level",
    }
)
"""Options of `vllm serve` that `vllm preload` has not (0.32); a test asks the real parsers."""


def holder_of(name: str) -> str:
    """The name of the instance that holds the weights of another."""
    return name + SUFFIX


def units_of(name: str) -> tuple[str, str]:
    """The units that may hold the weights of an instance."""
    return f"{name}{SUFFIX}.service", f"vllm{SUFFIX}@{name}.service"


def serving_args(args: Args, directory: str) -> dict[str, Scalar | list[Scalar]]:
    """The engine's arguments when it maps weights that are offered in `directory`, and never loads by itself."""
    kept = {name: value for name, value in args.items() if _option(name) not in _LOADING}
    extra = json.dumps({"socket_dir": directory, "fallback": False})
    return {**kept, "load-format": "ipc_cache", "model-loader-extra-config": extra}


def preload_line(
    command: Sequence[str], model: str, *, served_model_name: str, args: Args, directory: str, port: int
) -> list[str]:
    """The command that holds the weights, from the engine's own settings.

    Args:
        command: The engine's, which ends with `serve`.
        model: What is loaded.
        served_model_name: As for the engine.
        args: The engine's arguments; how to load from the disk is among them.
        directory: Where the sockets are made.
        port: Where /health is answered, on the loopback only.
    """
    kept = {name: value for name, value in args.items() if _option(name) not in SERVER_ONLY}
    ours: dict[str, Scalar | list[Scalar]] = {
        "weight-cache-socket-dir": directory,
        "weight-cache-health-host": "127.0.0.1",
        "weight-cache-health-port": port,
    }
    line = command_line([], "", served_model_name=served_model_name, host="", port=0, args={**kept, **ours})
    # It serves nothing, and the model is an option here.
    return [*command[:-1], "preload", "--model", model, *line[line.index("--served-model-name") :]]


def _option(name: str) -> str:
    return canonical(name.partition(".")[0])


def remarks(version: tuple[int, int, int] | None) -> list[str]:
    """What a plan says of weights that a second unit holds."""
    since = ".".join(map(str, SINCE[:2]))
    if version is not None and version < SINCE:
        return [f"weights cannot be held by a second unit: `vllm preload` came with vLLM {since}"]
    costs = (
        f"weights held by a second unit (vLLM {since}, CUDA): they lie on each GPU once, the engine maps them and "
        f"counts them into its share; the holding process takes {CONTEXT_MIB} MiB or more of each GPU besides"
    )
    return [costs, f"held weights rule out: {RULES_OUT}"]
