"""`loaders`: which way to load is the fastest on this machine for this checkpoint, measured on some of its shards."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.loaders import WAYS, Measured, Way, advice, sample, set_now
from vllm_supervisor.core.plain import printable, table
from vllm_supervisor.core.readahead.amounts import parse_amount
from vllm_supervisor.core.words import size

from .places import add_places, find, read, reads_weights

if TYPE_CHECKING:
    from vllm_supervisor.adapters.readahead.files import File

HELP = "measure which way to load is the fastest here"
IN_USE = 0.1
"""When more than this share of the files stays in memory, somebody has them mapped, and cold cannot be measured."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "loaders",
        help=HELP,
        description="Reads some shards of the checkpoint with each way to load that is installed in the engine's "
        "environment, with a cold and with a warm page cache, and compares them with the disk's own speed. The way "
        "from memory to a GPU is not in it, but for those that read into a GPU and nowhere else. Nothing is started "
        "or stopped; the sampled files are dropped from the page cache.",
        epilog="Exit codes: 0 measured, 64 a wrong command line or no such instance, 75 nothing could be measured, "
        "77 only root and the service's user may read the configuration, 78 it or its checkpoint cannot be used.",
    )
    add_places(parser)
    parser.add_argument("--sample", metavar="SIZE", default="4GiB", help="at most so much is read (%(default)s)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a picture")
    parser.add_argument("--json", action="store_true", help="print an object for scripts")


def run(args: argparse.Namespace) -> int:
    """Measure; 0 when there are figures."""
    from vllm_supervisor.adapters.engine_info import find_interpreter
    from vllm_supervisor.adapters.model_path import locate
    from vllm_supervisor.adapters.readahead.files import NothingToReadError, weight_files
    from vllm_supervisor.adapters.readahead.look import look
    from vllm_supervisor.core.engineflags import effective
    from vllm_supervisor.core.readahead.order import Order
    from vllm_supervisor.daemon.loaders_svg import picture

    from .operations.ahead import shards, unit_seen

    try:
        limit = parse_amount(args.sample)
    except ValueError as error:
        return _said(f"--sample: {error}", ExitCode.USAGE)
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    instance = read(args, place)
    if isinstance(instance, int):
        return instance
    engine, (unit, _) = reads_weights(instance).settings.engine, unit_seen(instance.name, place.config_path)
    environment = {**os.environ, **unit, **instance.configured_env()}
    command, options = engine.command, effective(engine.command[1:], engine.args)
    python = find_interpreter(command, environment)
    if python is None:
        return _said(f"{command[0]} leads to no Python interpreter; correct engine.command", ExitCode.PERMANENT)
    try:
        model = locate(engine.model, environment, str(options.get("revision") or "main"))
        files = weight_files(Order(str(model), load_format="safetensors"))
    except NothingToReadError as error:
        return _said(str(error), ExitCode.PERMANENT)
    seen = look()
    # Eager holds a whole shard, multithread several; half of what is free leaves room for whoever runs beside us.
    free = seen.available // 2 if seen is not None else limit
    total = sum(file.size for file in files)
    chosen = [files[number] for number in sample([file.size for file in files], min(limit, free))]
    if not chosen:
        least = min(file.size for file in files)
        why = "--sample allows" if limit <= free else "memory allows"
        return _said(
            f"the smallest shard has {size(least)}, more than the {size(min(limit, free))} that {why}", ExitCode.USAGE
        )
    cold = not _in_use(chosen)
    if not cold:
        print("the files are in use and stay in memory, so only warm figures can be had", file=sys.stderr)
    disk = _disk(chosen) if cold else None
    found = [_measure(python, environment, way, chosen, cold=cold, device=engine.device) for way in WAYS]
    sampled = sum(file.size for file in chosen)
    sentences = advice(disk, found, total, set_now(options), read=sampled)
    title = f"{instance.name}: {len(chosen)} of {shards(len(files))}, {size(sampled)}"
    if args.svg is not None:
        try:
            args.svg.write_text(picture(title, disk, found), encoding="utf-8")
        except OSError as error:
            return _said(f"{args.svg} cannot be written: {error.strerror}", ExitCode.USAGE)
    if args.json:
        ways = [asdict(one) for one in found]
        print(json.dumps({"title": title, "disk": disk, "ways": ways, "advice": sentences}, indent=2))
    else:
        _show(title, disk, found, sentences)
    return ExitCode.OK if any(one.cold or one.warm for one in found) else ExitCode.TRANSIENT


def _drop(files: Sequence[File]) -> None:
    from vllm_supervisor.adapters.readahead import cache

    for file in files:
        cache.give_back(file.path)


def _in_use(files: Sequence[File]) -> bool:
    """Whether somebody keeps the files in memory. The look itself fetches pages: drop once more afterwards."""
    from vllm_supervisor.adapters.readahead import cache

    _drop(files)
    return any((cache.cached_share(file.path, file.size) or 0.0) > IN_USE for file in files)


def _disk(files: Sequence[File]) -> float | None:
    """The disk's own speed, by large reads of several threads; None where it cannot be told."""
    from vllm_supervisor.adapters.readahead.reading import Reader
    from vllm_supervisor.core.readahead.course import Course

    print("the disk itself", file=sys.stderr)
    _drop(files)
    total = sum(file.size for file in files)
    reader = Reader(files, Course(tuple(file.size for file in files), total))
    reader.start()
    try:
        while not reader.resting and not reader.failure:
            time.sleep(0.02)
        seconds, (read, _) = reader.seconds(), reader.counted()
    finally:
        reader.close()
    return read / seconds if read >= total / 2 and seconds > 0 else None


def _measure(
    python: Path, environment: Mapping[str, str], way: Way, files: Sequence[File], *, cold: bool, device: str
) -> Measured:
    from vllm_supervisor.adapters.loader_trial import Trial, TrialError

    if way.gpu and device == "cpu":
        return Measured(way.name, problem="needs a GPU")
    print(way.name, file=sys.stderr)
    try:
        with Trial(python, environment, way.name, way.package, [file.path for file in files]) as trial:
            trial.prepare()
            if cold:
                _drop(files)
            first = trial.measure()
            # From memory it costs little, and the first reading pays for what the way itself sets up.
            warm = max(trial.measure(), trial.measure() if cold else first)
            return Measured(way.name, first if cold else None, warm)
    except (TrialError, OSError) as problem:
        return Measured(way.name, problem=str(problem))


def _show(title: str, disk: float | None, found: Sequence[Measured], sentences: Sequence[str]) -> None:
    top = max([disk or 0.0, *(value or 0.0 for one in found for value in (one.cold, one.warm)), 1.0])
    rows: list[tuple[str, str, float | None]] = [("the disk itself", "cold", disk)]
    rows += [(one.name, name, value) for one in found for name, value in (("cold", one.cold), ("warm", one.warm))]
    lines = [(name, state, f"{size(value)}/s", _bar(value, top)) for name, state, value in rows if value is not None]
    lines += [(one.name, "", "-", printable(one.problem)) for one in found if one.problem]
    wide = max(len(speed) for _, _, speed, _ in lines)
    print(printable(title))
    print("\n".join(table([(name, state, speed.rjust(wide), shown) for name, state, speed, shown in lines])))
    for sentence in sentences:
        print(printable(sentence))


def _bar(value: float, top: float) -> str:
    return "#" * max(round(24 * value / top), 1)


def _said(sentence: str, code: int) -> int:
    print(f"vllm-supervisor loaders: {printable(sentence)}", file=sys.stderr)
    return code
