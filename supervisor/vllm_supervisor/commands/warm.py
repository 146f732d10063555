"""`warm`: before a start is due, what it reads is brought into memory, and what it would compile is looked at."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import ExitCode

from .places import add_places, find, read, reads_weights

if TYPE_CHECKING:
    from vllm_supervisor.core.readahead.report import Report
    from vllm_supervisor.daemon.instance import Instance

HELP = "bring weights and compiled modules of an instance to where its next start is quick"
LINE_EVERY_S = 5.0
Say = Callable[[str], None]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "warm",
        help=HELP,
        description="Compiles the modules of the engine's environment that are not, where it may write; says which of "
        "the engine's caches are warm; and reads the shards into memory, as far as memory is free for them. Nothing "
        "is started or stopped. Run it as root, or as the service's user.",
        epilog="Exit codes: 0 done as far as it goes, 64 no such instance, 75 the reading failed, 77 only root and "
        "the service's user may read the configuration, 78 the configuration or its checkpoint cannot be used.",
    )
    add_places(parser)
    parser.add_argument("--json", action="store_true", help="print an object for scripts")


def run(args: argparse.Namespace) -> int:
    """Warm it; 0 when nothing failed."""
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    instance = read(args, place)
    if isinstance(instance, int):
        return instance
    from .operations.ahead import unit_seen

    unit, active = unit_seen(instance.name, place.config_path)
    environment = {**os.environ, **unit, **instance.configured_env()}
    # PyTorch names a directory by the user, by the account where no variable tells it.
    environment["USER"] = environment.get("USER") or getpass.getuser()
    document: dict[str, Any] = {"instance": instance.name}
    with _showing() as say:
        document["modules"] = _modules(instance, environment, say)
        document["caches"] = _caches(instance, environment)
        if not args.json:
            _print_first(document)
        document["weights"], code = _weights(instance, unit, say, running=active or place.socket_path.exists())
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        print(f"weights    {document['weights']['sentence']}")
    return code


def _modules(instance: Instance, environment: Mapping[str, str], say: Say) -> dict[str, Any]:
    from vllm_supervisor.adapters.bytecode import compile_modules, modules, writable
    from vllm_supervisor.adapters.engine_info import find_interpreter, package_directories

    command = instance.settings.engine.command
    python = find_interpreter(command, environment)
    roots = [root for root in package_directories(command, environment) if root.name == "site-packages"]
    roots = list({root.resolve(): root for root in roots}.values())
    if python is None or not roots:
        return {"sentence": f"no Python environment is found for {command[0]}", "modules": 0, "compiled": 0, "left": 0}
    found = [modules(root) for root in roots]
    count = sum(number for number, _ in found)
    missing = [file for _, files in found for file in files]
    ours = writable(missing)
    where = roots[0].parents[2]
    closed = len(missing) - len(ours)
    problem = ""
    if ours:
        problem = compile_modules(python, ours, lambda done: say(f"{done} of {len(ours)} modules compiled"))
        missing = [file for root in roots for file in modules(root)[1]]
    made = closed + len(ours) - len(missing)
    parts = [f"{count} modules in {where}"]
    parts.append(f"{made} compiled now" if made else "all compiled" if not missing else "none compiled now")
    if closed:
        parts.append(f"{closed} not compiled where we may not write: run it as root")
    if problem:
        parts.append(problem)
    elif len(missing) > closed:
        invalid = len(missing) - closed
        parts.append(f"{invalid} {'is' if invalid == 1 else 'are'} no valid Python")
    return {"sentence": ", ".join(parts), "modules": count, "compiled": made, "left": len(missing)}


def _caches(instance: Instance, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    from vllm_supervisor.adapters.cache_dirs import look_into
    from vllm_supervisor.core.caches import caches
    from vllm_supervisor.core.engineflags import effective

    rows, engine = [], instance.settings.engine
    eager = "enforce-eager" in effective(engine.command[1:], engine.args)
    for cache in caches(environment, engine.device, eager=eager):
        found = look_into(cache.path)
        rows.append(
            {
                "name": cache.name,
                "path": cache.path,
                "state": found.state,
                "files": found.files,
                "bytes": found.size,
                "saves": cache.saves,
            }
        )
    return rows


def _print_first(document: Mapping[str, Any]) -> None:
    from vllm_supervisor.core.plain import printable
    from vllm_supervisor.core.words import size

    print(f"modules    {printable(document['modules']['sentence'])}")
    for row in document["caches"]:
        files = "1 file" if row["files"] == 1 else f"{row['files']} files"
        amount = f"{size(row['bytes'])} in {files}" if row["files"] else f"would save {row['saves']}"
        print(f"cache      {row['name']:<20} {row['state']:<8} {amount}, {printable(row['path'])}")
    sys.stdout.flush()


def _weights(instance: Instance, unit: Mapping[str, str], say: Say, *, running: bool) -> tuple[dict[str, Any], int]:
    from vllm_supervisor.adapters.readahead.client import read_ahead
    from vllm_supervisor.core.readahead.report import Doing

    from .operations.ahead import order_of, outcome, watched

    setting = instance.settings.load.readahead
    order = order_of(reads_weights(instance), unit, "auto" if setting == "off" else setting, replaces=running)
    if isinstance(order, str):
        return {"sentence": f"nothing is read: {order}"}, ExitCode.OK
    report: Report = watched(read_ahead(order), say)
    code = ExitCode.OK
    if report.doing is Doing.FAILED:
        code = ExitCode.TRANSIENT
    elif report.doing is Doing.OFF and not report.total_bytes:
        code = ExitCode.PERMANENT  # there is no checkpoint that could be read
    return {
        "sentence": outcome(report),
        "total_bytes": report.total_bytes,
        "read_bytes": report.read_bytes,
        "cached_bytes": report.cached_bytes,
        "bytes_per_second": report.disk_rate,
    }, code


@contextlib.contextmanager
def _showing() -> Iterator[Say]:
    """A line that changes on a terminal; elsewhere one now and then."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("looking") as status:
            yield lambda text: status.update(text) if text else None
        return
    told = time.monotonic()

    def tell(text: str) -> None:
        nonlocal told
        if text and time.monotonic() - told >= LINE_EVERY_S:
            told = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    yield tell
