"""`run`: supervise one engine, as a service or in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from vllm_supervisor.core.exits import MEANINGS, ExitCode

PARTING_S = 1.0
"""All is done and said by then; so long a thread may still take to come back."""

HELP = "start the engine of a configuration and supervise it until it ends"

CODES = "Exit codes: " + ", ".join(f"{int(code)} {meaning}" for code, meaning in MEANINGS.items()) + "."


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("run", help=HELP, description=HELP.capitalize() + ".", epilog=CODES)
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="NAME.toml; NAME.env beside it is read, too"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write every event to FILE, for `replay`")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="history and incidents (default: the unit's, or the user's)"
    )
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="control socket and lock")
    parser.add_argument(
        "--weights", action="store_true", help="hold the weights of the instance on the GPUs instead (weights.held)"
    )
    parser.add_argument("--resume-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def run(args: argparse.Namespace) -> int:
    """Supervise; the exit code says how it ended."""
    from vllm_supervisor.daemon.instance import read_instance

    instance = read_instance(
        args.config.absolute(), state_dir=args.state_dir, runtime_dir=args.runtime_dir, holds_weights=args.weights
    )
    if isinstance(instance, list):
        for problem in instance:
            print(problem, file=sys.stderr)
        return ExitCode.PERMANENT
    from vllm_supervisor.daemon.main import supervise

    carried = None
    if args.resume_fd is not None:
        from vllm_supervisor.daemon.carry import read_descriptor

        carried = read_descriptor(args.resume_fd)
        instance = carried.applied_to(instance)

    async def to_the_end() -> int:
        code = await supervise(instance, record_path=args.record, log_level=args.log_level, carried=carried)
        await _part_with_threads(code)
        return code

    return asyncio.run(to_the_end())


async def _part_with_threads(code: int) -> None:
    """End here and now when a thread hangs in a file system or a driver: the exit would wait for it for ever."""
    ending = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    done, _ = await asyncio.wait({ending}, timeout=PARTING_S)
    if not done:
        os._exit(code)
