"""`vllm-supervisor plan MODEL`: what fits on which GPUs, from headers and config.json alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from vllm_supervisor.core import held
from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.plan import engine, planner, present
from vllm_supervisor.core.plan.request import Measured, PlanEntry, PlanRequest
from vllm_supervisor.core.plan.shape import Shape, read_shape
from vllm_supervisor.core.plan.weights import Tally, tally

from .plan_machine import NoMachineError, UsageError, machine_of, size_of

if TYPE_CHECKING:
    from vllm_supervisor.adapters.checkpoint import CheckpointSeen

CACHE_TYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "plan",
        help="what fits on which GPUs, before anything is started",
        description="Reads config.json and safetensors headers, no weights, and says for every tensor-parallel "
        "size what lands on a GPU, how many tokens fit beside it and which flags to use.",
        epilog="Exit codes: 0 something fits (with --max-model-len: that length does), 64 usage, or no GPU is here and "
        "none was described, 78 nothing fits, or the checkpoint cannot be used.",
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
    """Print the plan; 78 for a checkpoint that cannot be used, or where nothing fits."""
    from vllm_supervisor.daemon.measured import measured_of_model

    return run_with(args, measured_of_model(args.model))


def run_with(args: argparse.Namespace, measured: tuple[Measured, ...]) -> int:
    """As `run`, with the figures of earlier starts of this model on this machine."""
    from vllm_supervisor.adapters.checkpoint import read_checkpoint
    from vllm_supervisor.adapters.model_path import locate

    lacking, request = "", None
    try:
        request = request_from(args, measured)
    except NoMachineError as problem:
        lacking = str(problem)  # the checkpoint can be looked at all the same
    except UsageError as problem:
        sys.stderr.write(f"vllm-supervisor plan: {problem}\n")
        return ExitCode.USAGE
    seen = read_checkpoint(locate(args.model, os.environ))
    failed = _problems(seen)
    for sentence in [*failed, *filter(None, [lacking])]:
        sys.stderr.write(f"vllm-supervisor plan: {_printable(sentence)}\n")
    if failed or request is None:
        return ExitCode.PERMANENT if failed else ExitCode.USAGE
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
    fits = any(entry.fits and (request.max_model_len or 0) <= entry.max_model_len for entry in entries)
    return ExitCode.OK if fits else ExitCode.PERMANENT


def request_from(args: argparse.Namespace, measured: tuple[Measured, ...]) -> PlanRequest:
    """The request that a command line makes."""
    machine = machine_of(args)
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if args.pipeline_parallel_size < 1 or args.data_parallel_size < 1:
        raise UsageError("--pipeline-parallel-size and --data-parallel-size must be at least 1")
    utilization = args.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise UsageError(f"--gpu-memory-utilization must be above 0 and at most 1, not {utilization:g}")
    cache = size_of(args.kv_cache_memory, "--kv-cache-memory")
    if machine.memory is None and cache is None:
        raise NoMachineError(
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


def _version(args: argparse.Namespace) -> engine.Version | None:
    if args.engine_version is not None:
        version = engine.parse_version(args.engine_version)
        if version is None:
            raise UsageError(f"--engine-version takes a release such as 0.32.0, not {args.engine_version!r}")
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
