"""`vllm-supervisor plan MODEL`: what fits on which GPUs, from headers and config.json alone."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_supervisor.core import held
from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.plan import engine, planner, present
from vllm_supervisor.core.plan.request import Measured, PlanEntry, PlanRequest
from vllm_supervisor.core.plan.shape import Shape, read_shape
from vllm_supervisor.core.plan.sizes import find_card, parse_size
from vllm_supervisor.core.plan.weights import Tally, tally

if TYPE_CHECKING:
    from vllm_supervisor.adapters.checkpoint import CheckpointSeen

CACHE_TYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class _Machine:
    count: int | None = None
    memory: int | None = None
    capability: tuple[int, int] | None = None


class _UsageError(Exception):
    """A wrong command line, as one sentence."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "plan",
        help="what fits on which GPUs, before anything is started",
        description="Reads config.json and safetensors headers, no weights, and says for every tensor-parallel "
        "size what lands on a GPU, how many tokens fit beside it and which flags to use.",
    )
    parser.add_argument("model", metavar="MODEL", help="directory of the checkpoint, or a hub name in the cache")
    machine = parser.add_argument_group("the machine (default: the GPUs that are here)")
    machine.add_argument("--gpus", metavar="N", help="how many GPUs; also '8 x RTX PRO 6000'")
    machine.add_argument("--gpu", metavar="NAME", help='which card, such as "RTX PRO 6000"')
    machine.add_argument("--gpu-memory", metavar="SIZE", help="memory of one GPU, such as 95.6GiB; also a card's name")
    machine.add_argument("--compute-capability", metavar="X.Y", help="of the GPUs, such as 12.0")
    settings = parser.add_argument_group("the engine's settings")
    settings.add_argument("--engine-version", metavar="V", help="its defaults are used (default: of --engine)")
    settings.add_argument("--engine", metavar="PATH", default="/opt/vllm/bin/vllm", help="the engine (%(default)s)")
    settings.add_argument("--gpu-memory-utilization", type=float, metavar="F", help="default: the engine version's")
    settings.add_argument("--kv-cache-memory", metavar="SIZE", help='"how many tokens are that": given, not estimated')
    settings.add_argument("--kv-cache-dtype", choices=CACHE_TYPES, default="auto", help="default: %(default)s")
    settings.add_argument("--max-model-len", type=int, metavar="N", help="say whether this one fits")
    settings.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="default: the engine's for the card")
    settings.add_argument("--max-num-seqs", type=int, metavar="N", help="default: the engine's for the card")
    settings.add_argument("--block-size", type=int, metavar="N", help="default: the attention backend's")
    settings.add_argument("--pipeline-parallel-size", type=int, default=1, metavar="N", help="default: %(default)s")
    settings.add_argument("--data-parallel-size", type=int, default=1, metavar="N", help="default: %(default)s")
    settings.add_argument("--enable-expert-parallel", action="store_true", help="spread whole experts")
    settings.add_argument("--enforce-eager", action="store_true", help="without CUDA graphs")
    settings.add_argument("--held-weights", action="store_true", help="a second unit holds them (weights.held)")
    parser.add_argument("--json", action="store_true", help="print an object for scripts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 78 for a checkpoint that cannot be used."""
    from vllm_supervisor.daemon.measured import measured_of_model

    return run_with(args, measured_of_model(args.model))


def run_with(args: argparse.Namespace, measured: tuple[Measured, ...]) -> int:
    """As `run`, with the figures of earlier starts of this model on this machine."""
    from vllm_supervisor.adapters.checkpoint import read_checkpoint
    from vllm_supervisor.adapters.model_path import locate

    try:
        request = request_from(args, measured)
    except _UsageError as problem:
        sys.stderr.write(f"vllm-supervisor plan: {problem}\n")
        return ExitCode.USAGE
    seen = read_checkpoint(locate(args.model, os.environ))
    failed = _problems(seen)
    if failed:
        for sentence in failed:
            sys.stderr.write(f"vllm-supervisor plan: {_printable(sentence)}\n")
        return ExitCode.PERMANENT
    assert seen.config is not None  # noqa: S101 - a checkpoint without problems has one
    shape = read_shape(seen.config, seen.quant_config)
    counted = tally(seen.tensors, shape)
    entries = planner.plan(shape, counted, request)
    if not entries:
        sys.stderr.write(
            f"vllm-supervisor plan: no tensor-parallel size divides {shape.heads} heads and {request.gpus} GPUs in "
            f"{request.pipeline} x {request.data} groups; use other --pipeline-parallel-size or --data-parallel-size\n"
        )
        return ExitCode.PERMANENT
    if args.json:
        sys.stdout.write(json.dumps(present.as_json(shape, counted, request, entries), indent=2) + "\n")
    else:
        _show(shape, counted, request, entries)
        if args.held_weights:
            sys.stdout.write("".join(f"{line}\n" for line in held.remarks(request.version)))
    return ExitCode.OK


def request_from(args: argparse.Namespace, measured: tuple[Measured, ...]) -> PlanRequest:
    """The request that a command line makes."""
    machine = _machine(args)
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise _UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if args.pipeline_parallel_size < 1 or args.data_parallel_size < 1:
        raise _UsageError("--pipeline-parallel-size and --data-parallel-size must be at least 1")
    utilization = args.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise _UsageError(f"--gpu-memory-utilization must be above 0 and at most 1, not {utilization:g}")
    cache = _size(args.kv_cache_memory, "--kv-cache-memory")
    if machine.memory is None and cache is None:
        raise _UsageError(
            "no GPU answers here; describe the machine, for instance --gpus 8 --gpu-memory 95.6GiB, "
            "or give --kv-cache-memory"
        )
    return PlanRequest(
        gpus=machine.count,
        memory_bytes=machine.memory,
        capability=machine.capability,
        utilization=utilization,
        kv_cache_memory=cache,
        kv_cache_dtype=args.kv_cache_dtype,
        pipeline=args.pipeline_parallel_size,
        data=args.data_parallel_size,
        expert=args.enable_expert_parallel,
        batched_tokens=args.max_num_batched_tokens,
        sequences=args.max_num_seqs,
        block=args.block_size,
        max_model_len=args.max_model_len,
        eager=args.enforce_eager,
        version=_version(args),
        measured=measured,
    )


def _machine(args: argparse.Namespace) -> _Machine:
    count, named = None, args.gpu
    if args.gpus is not None:
        match = re.fullmatch(r"\s*(\d{1,5})?\s*[x*]?\s*(.*?)\s*", args.gpus, re.IGNORECASE)
        if match is None or match[1] == "0" or not (match[1] or match[2]):
            raise _UsageError(f"--gpus takes a number from 1 up, not {args.gpus!r}")
        if match[2] and find_card(match[2]) is None:
            raise _UsageError(f"--gpus takes a number up to 99999 and a card that is known here, not {args.gpus!r}")
        count, named = int(match[1] or 1), named or match[2] or None
    memory = parse_size(args.gpu_memory) if args.gpu_memory else None
    if args.gpu_memory and memory is None:
        named = named or args.gpu_memory
    capability = _capability(args.compute_capability)
    if named:
        card = find_card(named)
        if card is None:
            raise _UsageError(f"{named!r} is neither a size nor a card that is known here; give --gpu-memory 95.6GiB")
        return _Machine(count or 1, memory or card[1], capability or card[2])
    if memory is not None:
        if memory < 1:
            raise _UsageError("--gpu-memory must be more than nothing")
        return _Machine(count or 1, memory, capability)
    return _machine_here(count, capability)


def _machine_here(count: int | None, capability: tuple[int, int] | None) -> _Machine:
    from vllm_supervisor.adapters.nvml_once import read_once

    seen = read_once()
    if seen is None or not seen.gpus:
        return _Machine(count, None, capability)
    smallest = min(seen.gpus, key=lambda gpu: gpu.total_bytes)
    return _Machine(count or len(seen.gpus), smallest.total_bytes, capability or smallest.compute_capability)


def _size(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise _UsageError(f"{option} takes a size such as 11.7GiB, not {text!r}")
    return size


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,2})\.?(\d)", text)
    if match is None:
        raise _UsageError(f"--compute-capability takes a number such as 12.0, not {text!r}")
    return int(match[1]), int(match[2])


def _version(args: argparse.Namespace) -> engine.Version | None:
    if args.engine_version is not None:
        version = engine.parse_version(args.engine_version)
        if version is None:
            raise _UsageError(f"--engine-version takes a release such as 0.32.0, not {args.engine_version!r}")
        return version
    from vllm_supervisor.adapters.engine_info import read_version

    return engine.parse_version(read_version((args.engine,), os.environ))


def _problems(seen: CheckpointSeen) -> list[str]:
    from vllm_supervisor.core.checkpoint import CheckpointError

    found = [problem.sentence for problem in seen.problems]
    found += [
        f"{name} is named by no index; the files belong to different downloads, remove it or download again"
        for name in seen.strays
    ]
    if seen.config is not None:
        try:
            read_shape(seen.config, seen.quant_config)
        except CheckpointError as problem:
            found.append(problem.sentence)
    return found


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\n", " ")


def _show(shape: Shape, counted: Tally, request: PlanRequest, entries: tuple[PlanEntry, ...]) -> None:
    lines = present.rows(entries)
    out = sys.stdout
    out.write(_printable(present.title(shape, counted, request)) + "\n")
    if out.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*present.COLUMNS)
        for line in lines:
            table.add_row(*line, style="" if line[1] == "yes" else "dim")
        Console().print(table)
    else:
        out.write("\n".join(present.plain_table(lines)) + "\n")
    out.write("\n".join(_printable(remark) for remark in present.remarks(entries)) + "\n")
