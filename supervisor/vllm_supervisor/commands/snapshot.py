"""`snapshot`: a quiet moment for a command that snapshots the machine, a manifest, and the service back in any case."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.core.operations import FREE_WITHIN_S

if TYPE_CHECKING:
    from .operations.served import Served

HELP = "stop an instance, run a command that snapshots the machine, bring the instance back"
DIFFERS = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    from .operations.follow import add_follow

    parser = subparsers.add_parser(
        "snapshot",
        help=HELP,
        usage="%(prog)s [options] INSTANCE -- COMMAND...\n       %(prog)s verify MANIFEST",
        description="Reads the weights into memory, drains and stops the instance, sees that the GPUs are free, writes "
        "everything to the disks and a manifest beside it, runs COMMAND, then starts, waits and asks the smoke "
        "question. Whatever fails in the middle, the instance comes back. The command finds the manifest's path in "
        "SNAPSHOT_MANIFEST. `verify` says what differs now from a manifest. Only root may; it runs in a unit "
        "of its own.",
        epilog="Exit codes: 0 done, 10 refused, 12 not stopped, 13 GPUs held, 14 not synced, 15 no manifest, 16 the "
        "command failed (the instance is back), 17 up with a wrong answer, 20 down, 75 another operation is under way, "
        "77 not root, 64 no such instance. Of verify: 0 nothing differs, 1 something does.",
    )
    parser.add_argument("instance", metavar="INSTANCE", help="its name; or `verify`")
    parser.add_argument("file", nargs="?", metavar="MANIFEST", help="only for `verify`; a COMMAND stands after `--`")
    parser.add_argument(
        "--no-stop", action="store_true", help="leave it running: the snapshot is crash-consistent only"
    )
    parser.add_argument(
        "--manifest", type=Path, metavar="FILE", help="where the manifest goes (default: beside the record)"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600.0, metavar="S", help="the command is killed after so long (%(default)g s)"
    )
    parser.add_argument(
        "--free-within",
        type=float,
        default=FREE_WITHIN_S,
        metavar="S",
        help="the GPUs must be free so long after the stop, or COMMAND is not run (%(default)g s)",
    )
    add_follow(parser)
    parser.set_defaults(state_dir=None, runtime_dir=None)


def run(args: argparse.Namespace) -> int:
    """Make a snapshot, or verify one."""
    from .operations.follow import find_served, operate

    if args.instance == "verify":
        return _verify(args.file)
    if args.file is not None or not (args.resume or args.behind):
        return _usage("give the command that makes the snapshot after `--`")
    if not args.timeout > 0:
        return _usage(f"--timeout must be above 0, not {args.timeout:g}")
    if not args.free_within >= 0:
        return _usage(f"--free-within must be 0 or more, not {args.free_within:g}")
    it = find_served(args)
    if isinstance(it, int):
        return it
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    params: dict[str, Any] = {
        "command": args.behind,
        "stop": not args.no_stop,
        "timeout_s": args.timeout,
        "free_within_s": args.free_within,
        "manifest": str((args.manifest or _directory(it) / f"manifest-{stamp}.json").absolute()),
    }
    return operate(args, it, params, lambda: _foresee(it, stop=params["stop"]))


def _directory(it: Served) -> Path:
    from vllm_supervisor.adapters.steps_journal import StepsJournal

    return StepsJournal(it.name).directory


def _foresee(it: Served, *, stop: bool) -> int:
    from .restart import foresee

    if not stop:
        print("it keeps running: the snapshot is as consistent as a power cut would leave the disks")
        return 0
    return foresee("snapshot", it)


def _verify(file: str | None) -> int:
    from vllm_supervisor.core.manifest import ManifestError, differences, read_manifest
    from vllm_supervisor.core.plain import printable
    from vllm_supervisor.daemon.locate import SYSTEM_CONFIG

    from .operations.inventory import parts_now
    from .operations.served import StepError, served

    if file is None:
        return _usage("verify takes one MANIFEST")
    try:
        before = read_manifest(json.loads(Path(file).read_text(encoding="utf-8")))
        name = str(before["instance"])
        found = differences(before, parts_now(served(name, SYSTEM_CONFIG / f"{name}.toml")))
    except OSError as error:
        return _usage(f"{file} cannot be read: {error.strerror}")
    except (ValueError, ManifestError) as error:
        return _usage(f"{file}: {error}" if isinstance(error, ManifestError) else f"{file} is no JSON")
    except StepError as error:
        return _usage(str(error))
    for line in found:
        print(printable(line))
    if not found:
        print(f"nothing differs from the snapshot of {name} at {before.get('at', 'an unknown time')}")
    return DIFFERS if found else ExitCode.OK


def _usage(sentence: str) -> int:
    print(f"vllm-supervisor snapshot: {sentence}", file=sys.stderr)
    return ExitCode.USAGE
