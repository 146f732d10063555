"""What reading ahead gains: a real engine and a checkpoint of some gigabytes, with a cold and a warm page cache.

Alone: `bench_loading.py [--gib 3] [--rounds 2]`. The engine is the CPU build, which imports as long as a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "supervisor")]

from lab import models, paths  # noqa: E402 - only importable from here on
from lab.bench_parts import REAL_ARGS, REAL_ENV, Row  # noqa: E402
from process.harness import Daemon, write_config  # noqa: E402

HIDDEN, INNER, HEADS, KV_HEADS, WORDS = 2048, 8192, 16, 4, 512
SHARDS = 12
START_S = 300.0
UNTIL_LOADED = ("launching", "configuring", "connecting", "loading-weights")


class Start(NamedTuple):
    """Seconds of one start, and what was read ahead of it."""

    weights: float
    until_loaded: float
    ready: float
    hit: float | None
    disk: float | None


def readahead_rows(gib: float = 3.0, rounds: int = 2) -> list[Row]:
    """Starts with and without reading ahead in turn; all of them in one run, on a checkpoint made for it.

    Args:
        gib: Its size.
        rounds: Starts of each kind.
    """
    # Not below /tmp, which may lie in memory.
    folder = Path(tempfile.mkdtemp(prefix="vsup-bench.", dir="/var/tmp"))
    try:
        size = checkpoint(folder / "model", gib)
        found: dict[tuple[str, str], list[Start]] = {}
        for number in range(rounds):
            kinds = [("cold", "off"), ("cold", "auto"), ("warm", "off"), ("warm", "auto")]
            for cache, setting in kinds if number % 2 == 0 else [kinds[1], kinds[0], kinds[3], kinds[2]]:
                (drop if cache == "cold" else warm)(folder / "model")
                start = run(folder / "model", setting)
                print(f"# {cache}, load.readahead = {setting}: {start}", file=sys.stderr, flush=True)
                found.setdefault((cache, setting), []).append(start)
    finally:
        shutil.rmtree(folder)
    return [row for cache in ("cold", "warm") for row in _rows(cache, found, size, rounds)]


def _rows(cache: str, found: dict[tuple[str, str], list[Start]], size: int, rounds: int) -> list[Row]:
    plain, ahead = found[cache, "off"], found[cache, "auto"]
    text = f"{size / 1e9:.1f} GB in {SHARDS} shards, {cache} page cache, {rounds} starts each, median"
    rows = []
    for what, field in (
        ("weights phase", "weights"),
        ("launch to weights loaded", "until_loaded"),
        ("start to READY", "ready"),
    ):
        ours, bare = (median(getattr(start, field) for start in starts) for starts in (ahead, plain))
        measured = f"{ours:.2f} s, ratio {ours / bare:.2f}"
        if field == "weights":
            disks = [start.disk for start in ahead if start.disk]
            hit = median(start.hit or 0.0 for start in ahead)
            measured += f"; {hit:.0%} found in memory" + (f", disk {median(disks) / 1e9:.2f} GB/s" if disks else "")
        wanted = "ratio < 1" if cache == "cold" else "ratio about 1"
        rows.append(Row(f"{what}, {text}", measured, f'load.readahead = "off": {bare:.2f} s', wanted))
    return rows


def run(model: Path, setting: str) -> Start:
    """One start of the real engine under the supervisor."""
    with tempfile.TemporaryDirectory(prefix="vsup-bench.") as name:
        engine = {"command": [str(paths.vllm()), "serve"], "model": str(model), "args": REAL_ARGS, "env": REAL_ENV}
        tables = {"smoke": {"on_start": "off"}, "load": {"readahead": setting}}
        config = write_config(Path(name), {}, engine=engine, **tables)
        with Daemon(config, Path(name)) as daemon:
            assert daemon.notify
            daemon.notify.wait_for("READY", START_S)
            status = daemon.status()
            daemon.sigterm()
            daemon.wait_exit(60)
    phases = status["phases"]
    read = status["readahead"]
    return Start(
        phases.get("loading-weights", 0.0),
        sum(phases.get(name, 0.0) for name in UNTIL_LOADED),
        sum(seconds for phase, seconds in phases.items() if phase not in {"ready", "waiting"}),
        read["hit_ratio"],
        read["disk_rate"],
    )


def drop(model: Path) -> None:
    """The checkpoint out of the page cache, and nothing else."""
    for file in sorted(model.glob("*.safetensors")):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(model: Path) -> None:
    """All of it into the page cache."""
    for file in sorted(model.glob("*.safetensors")):
        with file.open("rb", buffering=0) as data:
            while data.read(16 << 20):
                continue


def checkpoint(directory: Path, gib: float) -> int:
    """A Qwen2 checkpoint with random weights, in shards with an index; its bytes."""
    small = models.tiny_model()
    directory.mkdir(parents=True)
    for file in small.iterdir():
        if not file.name.endswith((".safetensors", ".index.json")):
            shutil.copy(file, directory)
    layer = _layer(0)
    each = sum(2 * rows * columns for _, (rows, columns) in layer)
    layers = max(round(gib * (1 << 30) / each), SHARDS)
    config = json.loads((small / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "num_hidden_layers": layers, "max_window_layers": layers,
        "vocab_size": config.get("vocab_size", WORDS), "torch_dtype": "bfloat16", "dtype": "bfloat16",
        "tie_word_embeddings": True, "head_dim": HIDDEN // HEADS,
    }  # fmt: skip
    config.pop("layer_types", None)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    shards: list[list[tuple[str, tuple[int, int]]]] = [[] for _ in range(SHARDS)]
    shards[0] = [("model.embed_tokens.weight", (config["vocab_size"], HIDDEN)), ("model.norm.weight", (HIDDEN, 1))]
    for number in range(layers):
        shards[number * SHARDS // layers] += _layer(number)
    chance = random.Random(20)
    block = b"".join(struct.pack("<H", chance.choice((0x3C00, 0xBC00, 0x3B80, 0xBB80))) for _ in range(1 << 19))
    index: dict[str, str] = {}
    total = 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        total += _write(directory / name, tensors, block)
        index |= dict.fromkeys((tensor for tensor, _ in tensors), name)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (directory / "model.safetensors.index.json").write_text(text)
    return total


def _layer(number: int) -> list[tuple[str, tuple[int, int]]]:
    """The tensors of a layer with their shapes; a vector has one column."""
    at, kv = f"model.layers.{number}", HIDDEN * KV_HEADS // HEADS
    return [
        (f"{at}.self_attn.q_proj.weight", (HIDDEN, HIDDEN)),
        (f"{at}.self_attn.k_proj.weight", (kv, HIDDEN)),
        (f"{at}.self_attn.v_proj.weight", (kv, HIDDEN)),
        (f"{at}.self_attn.o_proj.weight", (HIDDEN, HIDDEN)),
        (f"{at}.self_attn.q_proj.bias", (HIDDEN, 1)),
        (f"{at}.self_attn.k_proj.bias", (kv, 1)),
        (f"{at}.self_attn.v_proj.bias", (kv, 1)),
        (f"{at}.mlp.gate_proj.weight", (INNER, HIDDEN)),
        (f"{at}.mlp.up_proj.weight", (INNER, HIDDEN)),
        (f"{at}.mlp.down_proj.weight", (HIDDEN, INNER)),
        (f"{at}.input_layernorm.weight", (HIDDEN, 1)),
        (f"{at}.post_attention_layernorm.weight", (HIDDEN, 1)),
    ]


def _write(path: Path, tensors: list[tuple[str, tuple[int, int]]], block: bytes) -> int:
    header, place = {}, 0
    for name, (rows, columns) in tensors:
        size = 2 * rows * columns
        shape = [rows] if columns == 1 else [rows, columns]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = place
        while left:
            file.write(block[: min(left, len(block))])
            left -= min(left, len(block))
        file.flush()
        os.fsync(file.fileno())
    return place


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=3.0, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=2, help="starts of each kind")
    parser.add_argument("--model-only", type=Path, help="make the checkpoint there, and nothing else")
    args = parser.parse_args()
    if args.model_only:
        print(checkpoint(args.model_only, args.gib))
        return 0
    for row in readahead_rows(args.gib, args.rounds):
        print(" | ".join(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
