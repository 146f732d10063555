"""`init`: write a commented configuration for a model's directory."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import NOPERM, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_supervisor.core.propose import Fit

HELP = "write a commented configuration for a model"

ENV = """\
# The environment of the engine of the instance `{name}`, in the syntax of systemd's EnvironmentFile=. The supervisor
# reads it itself, so the service, a run in the foreground and a reload agree. [engine.env] of {name}.toml wins over it;
# HOME, TMPDIR and the cache directories come from the unit. No secrets here: see LoadCredential= in the unit.

# Several GPUs on PCIe without NVLink: NCCL's low-latency protocol, and direct copies between cards across all bridges.
# NCCL_PROTO=LL
# NCCL_P2P_LEVEL=SYS
"""


class InitError(Exception):
    """Nothing is written; the message is one sentence with the remedy."""

    def __init__(self, sentence: str, code: int = ExitCode.USAGE) -> None:
        super().__init__(sentence)
        self.code = code


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "init",
        help=HELP,
        description="Writes NAME.toml and NAME.env for a checkpoint. What is proposed comes from the checkpoint's "
        "config.json and from the GPUs that are here; every other setting stands in the file as a comment with its "
        "default. Nothing is ever overwritten.",
        epilog="Exit codes: 0 written, 64 nothing was written, 77 only root may write there, 78 the checkpoint "
        "cannot be read.",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("name", nargs="?", metavar="NAME", help="instance: /etc/vllm-supervisor/NAME.toml is written")
    where.add_argument("--output", type=Path, metavar="FILE", help="write FILE, which ends in .toml, instead")
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="directory of the checkpoint, or a cached hub name"
    )
    parser.add_argument(
        "--served-model-name", metavar="NAME", help="what clients ask for (default: the instance's name)"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="the engine's (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, metavar="N", help="the engine's (default: the first from 8000 on that is free)"
    )
    parser.add_argument("--metrics-port", type=int, metavar="N", help="ours (default: from 9477 on)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--engine", default="/opt/vllm/bin/vllm", metavar="PATH", help="default: %(default)s")


METRICS_HOST = "127.0.0.1"


def run(args: argparse.Namespace) -> int:
    """Write both files or none."""
    _choose_ports(args)
    try:
        target = _target(args)
        text = _document(args, target.stem)
        # Both can be read by everybody: the service's user reads them itself, and secrets have another place.
        _write({target: (text, 0o644), target.with_suffix(".env"): (ENV.format(name=target.stem), 0o644)})
    except InitError as problem:
        print(f"vllm-supervisor init: {problem}", file=sys.stderr)
        return problem.code
    print(target)
    print(f"wrote {target} and {target.with_suffix('.env')}", file=sys.stderr)
    print(f"next: read it, then run: vllm-supervisor check --config {target}", file=sys.stderr)
    return ExitCode.OK


def _choose_ports(args: argparse.Namespace) -> None:
    """The first ports that no other instance is configured with and nobody listens on now."""
    from vllm_supervisor.adapters.holders import port_holder
    from vllm_supervisor.core.neighbours import free_port
    from vllm_supervisor.daemon.neighbours import configured

    taken = [listen for needs in configured().values() for listen in needs.listens]

    def free(host: str, first: int) -> int:
        return free_port(host, first, taken, lambda port: port_holder(host, port) is not None)

    args.port = args.port or free(args.host, 8000) if args.port != 0 else 0
    taken.append(f"{args.host}:{args.port}")
    args.metrics_port = args.metrics_port or free(METRICS_HOST, 9477) if args.metrics_port != 0 else 0


def _target(args: argparse.Namespace) -> Path:
    from vllm_supervisor.core.neighbours import same_port
    from vllm_supervisor.daemon.locate import SYSTEM_CONFIG

    for option, port in (("--port", args.port), ("--metrics-port", args.metrics_port)):
        if not 1 <= port <= 65_535:
            raise InitError(f"{option} must be from 1 to 65535, not {port}")
    if same_port(f"{args.host}:{args.port}", f"{METRICS_HOST}:{args.metrics_port}"):
        raise InitError(f"--port and --metrics-port both say {args.port}: give one another")
    target: Path = args.output.absolute() if args.output is not None else SYSTEM_CONFIG / f"{args.name}.toml"
    file = target.name if args.output is not None else f"{args.name}.toml"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.toml", file):
        raise InitError(
            f"{file!r} cannot be an instance: its file is NAME.toml, NAME of letters, digits, '-', '_' and '.'"
        )
    for path in (target, target.with_suffix(".env")):
        if path.exists() or path.is_symlink():
            raise InitError(f"{path} exists and is not overwritten: move it away, or choose another name")
    return target


def _document(args: argparse.Namespace, name: str) -> str:
    from vllm_supervisor.adapters.model_path import locate
    from vllm_supervisor.config import parse
    from vllm_supervisor.config.example import Argument, document
    from vllm_supervisor.core.checkpoint import CheckpointError, parse_config
    from vllm_supervisor.core.plan.shape import read_shape
    from vllm_supervisor.core.propose import arguments, has_code

    model = locate(args.model, os.environ)
    path = model / "config.json"
    try:
        config = parse_config(path.read_bytes())
    except FileNotFoundError:
        raise InitError(
            f"there is no {path}: give the directory of a checkpoint as --model", ExitCode.PERMANENT
        ) from None
    except (OSError, CheckpointError) as error:
        raise InitError(f"{path} cannot be used: {error}", ExitCode.PERMANENT) from None
    try:
        context = read_shape(config).context
    except CheckpointError:
        context = 0
    fit = _fit(model) if args.device == "cuda" else None
    code = has_code(config, _json(model / "tokenizer_config.json"))
    found = arguments(config, context=context, code=code, fit=fit)
    if args.device == "cpu":
        found = [item for item in found if item.name not in {"tensor-parallel-size", "gpu-memory-utilization"}]
    given = {
        "engine.command": [args.engine, "serve"],
        "engine.model": str(model.absolute()) if model.is_dir() and model == Path(args.model) else args.model,
        "engine.served_model_name": args.served_model_name or name,
        "engine.host": args.host,
        "engine.port": args.port,
        "engine.device": args.device,
        "metrics.listen": f"{METRICS_HOST}:{args.metrics_port}",
    }
    unit = name if name == "kimi" else f"vllm@{name}"
    head = (
        f"The instance `{name}`. Lines without # are set, all others show a default. After a change: "
        f"`vllm-supervisor check --config FILE`, then `systemctl restart {unit}`."
    )
    text = document(head, given, [Argument(item.name, item.value, item.why, item.active) for item in found])
    problems = parse(text, name)
    if isinstance(problems, list):
        raise InitError("; ".join(f"{problem.key} {problem.message}" for problem in problems))
    return text


def _fit(model: Path) -> Fit | None:
    """What a plan says for the GPUs that are here; None without GPUs or for a checkpoint that cannot be planned."""
    from vllm_supervisor.adapters.checkpoint import read_checkpoint
    from vllm_supervisor.adapters.nvml_once import read_once
    from vllm_supervisor.core.checkpoint import CheckpointError
    from vllm_supervisor.core.plan.planner import plan
    from vllm_supervisor.core.plan.request import PlanRequest
    from vllm_supervisor.core.plan.shape import read_shape
    from vllm_supervisor.core.plan.weights import tally
    from vllm_supervisor.core.propose import choose

    machine = read_once()
    if machine is None or not machine.gpus:
        return None
    seen = read_checkpoint(model)
    if seen.problems or seen.config is None:
        return None
    smallest = min(machine.gpus, key=lambda gpu: gpu.total_bytes)
    request = PlanRequest(
        gpus=len(machine.gpus), memory_bytes=smallest.total_bytes, capability=smallest.compute_capability
    )
    with contextlib.suppress(CheckpointError):
        shape = read_shape(seen.config, seen.quant_config)
        return choose(plan(shape, tally(seen.tensors, shape), request), len(machine.gpus), shape.context)
    return None


def _json(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(files: Mapping[Path, tuple[str, int]]) -> None:
    """All files whole, or none of them; a file that came into being meanwhile is not touched either."""
    written: list[Path] = []
    try:
        for path, (text, mode) in files.items():
            _write_new(path, text, mode)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise InitError(f"{error.filename2 or error.filename} exists and is not overwritten") from None
        # Its own file name is that of a temporary file.
        failed = next(path for path in files if path not in written)
        if isinstance(error, FileNotFoundError):
            said = (
                f"{failed} cannot be written: there is no directory {failed.parent}; make it, or use another --output"
            )
            raise InitError(said) from None
        raise InitError(
            f"{failed} cannot be written ({error.strerror}): become root, or use --output",
            NOPERM if isinstance(error, PermissionError) else ExitCode.USAGE,
        ) from None


def _write_new(path: Path, text: str, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        # A link fails where a rename would replace.
        os.link(temporary, path)
    finally:
        Path(temporary).unlink()
