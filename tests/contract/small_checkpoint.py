"""A tiny checkpoint and the verb `plan` asked about it, shared by the tests of both."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lab.sparse_checkpoint import write_checkpoint
from vllm_supervisor.commands import plan

if TYPE_CHECKING:
    from pathlib import Path

SMALL = [
    ("model.embed_tokens.weight", "BF16", [64, 16]),
    ("model.layers.0.mlp.up_proj.weight", "BF16", [32, 16]),
    ("model.layers.1.mlp.up_proj.weight", "BF16", [32, 16]),
    ("lm_head.weight", "BF16", [64, 16]),
]
SMALL_CONFIG = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "vocab_size": 64}


def write_small(directory: Path) -> Path:
    """Four tensors in two shards."""
    write_checkpoint(directory, shards=2, config=SMALL_CONFIG, all_tensors=SMALL)
    return directory


def run_plan(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of `plan ARGUMENTS`."""
    parser = argparse.ArgumentParser()
    plan.add_parser(parser.add_subparsers())
    args = parser.parse_args(["plan", *map(str, arguments)])
    code = args.run(args)
    out, err = capsys.readouterr()
    return code, out, err
