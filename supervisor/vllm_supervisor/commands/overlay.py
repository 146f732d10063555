"""`vllm-supervisor overlay MODEL --output DIR`: serve an FP8-KV checkpoint where FP8 KV has no backend."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from vllm_supervisor.core.checkpoint import CheckpointError
from vllm_supervisor.core.exits import ExitCode


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "overlay",
        help="a directory of links to a checkpoint that asks for no FP8 KV cache",
        description="Makes a directory of links to a checkpoint in which config.json and hf_quant_config.json no "
        "longer ask for an FP8 KV cache. The checkpoint itself is never written.",
        epilog="Exit codes: 0 done, 64 usage, 78 the checkpoint or the target cannot be used.",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="directory of the checkpoint, or a cached hub name")
    parser.add_argument("--output", metavar="DIR", help="where the overlay stands, the same at every start")
    parser.add_argument("--diff", action="store_true", help="only show what the overlay changes; nothing is written")
    parser.add_argument("--remove", action="store_true", help="remove the overlay at --output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make, show or remove an overlay; 78 for a checkpoint or a target that cannot be used."""
    from vllm_supervisor.adapters.overlay_dir import OverlayError

    wrong = _usage(args)
    if wrong:
        sys.stderr.write(f"vllm-supervisor overlay: {wrong}\n")
        return ExitCode.USAGE
    try:
        _carry_out(args)
    except (CheckpointError, OverlayError) as problem:
        text = str(problem).encode("utf-8", "backslashreplace").decode()
        sys.stderr.write(f"vllm-supervisor overlay: {text}\n")
        return ExitCode.PERMANENT
    return ExitCode.OK


def _usage(args: argparse.Namespace) -> str:
    if args.remove and args.diff:
        return "--diff and --remove exclude each other; use one of them"
    if args.output is None and not args.diff:
        return "say where the overlay stands with --output DIR"
    if args.model is None and not args.remove:
        return "name the checkpoint's directory: overlay MODEL --output DIR"
    return ""


def _carry_out(args: argparse.Namespace) -> None:
    from vllm_supervisor.adapters import overlay_dir
    from vllm_supervisor.adapters.model_path import locate

    if args.remove:
        overlay_dir.remove(Path(args.output))
        sys.stderr.write(f"removed {args.output}\n")
        return
    model = locate(args.model, os.environ)
    if args.diff:
        sys.stdout.write(overlay_dir.describe(model).diff)
        return
    overlay, written = overlay_dir.build(model, Path(args.output))
    sys.stdout.write(overlay.diff)
    state = "made" if written else "is up to date at"
    what = "nothing had to be changed, all are links" if not overlay.diff else f"{len(overlay.links)} links"
    sys.stderr.write(f"overlay {state} {args.output}: {what}\n")
