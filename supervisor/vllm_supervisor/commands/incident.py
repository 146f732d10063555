"""`incident`: what was saved of failed starts and hangs; listed, shown, packed into one archive."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vllm_supervisor.core.exits import NOPERM, ExitCode

from .places import WHO, add_places, find

if TYPE_CHECKING:
    from vllm_supervisor.adapters.incidents import Kept

HELP = "list, show or pack what was saved of failed starts and hangs"
CODES = (
    "Exit codes: 0 done, 1 no such incident or it cannot be read or written, 64 no such instance, 77 only root and the "
    "service's user may."
)
NONE = 1

_SHOWN = ("evidence.txt", "timeline.txt", "processes.txt", "kernel.log", "stacks.txt")
_LAST_LINES = 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb and what can be done with incidents."""
    parser = subparsers.add_parser("incident", help=HELP, description=__doc__, epilog=CODES)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, words in (
        ("list", "list the incidents of an instance, the newest last"),
        ("show", "show an incident: verdict, evidence, phases, processes, last lines"),
        ("export", "pack an incident into one tar.gz, for a report; it holds no secrets that we know"),
    ):
        action = actions.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".", epilog=CODES)
        add_places(action, required=True)
        if name == "list":
            action.add_argument("--json", action="store_true", help="print one object an incident")
            continue
        action.add_argument(
            "incident", nargs="?", metavar="INCIDENT", help="its name, or how it begins (default: the newest)"
        )
        if name == "export":
            action.add_argument("--all", action="store_true", help="pack all of them")
            action.add_argument(
                "-o", "--output", metavar="FILE", help="where to; - is standard output (default: NAME.tar.gz here)"
            )
        else:
            action.add_argument("--json", action="store_true", help="print the verdict as JSON")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    from vllm_supervisor.adapters.incidents import Incidents

    place = find(args)
    if place is None:
        return ExitCode.USAGE
    root = place.history_path.parent / "incidents"
    if not _readable(root):
        _no(f"{root} cannot be read: {WHO}")
        return NOPERM
    kept = Incidents(root).all()
    if args.action == "list":
        return _list(kept, place.name, as_json=args.json)
    if args.action == "export" and args.all and args.incident is None:
        chosen = kept
    else:
        chosen = [one for one in kept if args.incident is None or one.name.startswith(args.incident)][-1:]
    if not chosen:
        which = f"no incident {args.incident!r} of" if args.incident else "no incident of"
        return _no(f"there is {which} {place.name}; `vllm-supervisor incident list {args.instance}` lists them")
    if args.action == "show":
        return _show(chosen[0], as_json=args.json)
    return _export(chosen, place.name, args.output)


def _readable(root: Path) -> bool:
    try:
        return not root.exists() or os.access(root, os.R_OK | os.X_OK)
    except PermissionError:
        return False


def _no(sentence: str) -> int:
    print(f"vllm-supervisor incident: {sentence}", file=sys.stderr)
    return NONE


def _list(kept: list[Kept], instance: str, *, as_json: bool) -> int:
    from vllm_supervisor.core.plain import table
    from vllm_supervisor.core.words import size

    if as_json:
        for one in kept:
            print(json.dumps({"name": one.name, "path": str(one.path), "bytes": one.size, **_cause(one)}))
        return ExitCode.OK
    if not kept:
        print(f"{instance} has no incidents", file=sys.stderr)
        return ExitCode.OK
    rows = [(one.name, str(_cause(one).get("phase", "-")), size(one.size), _when(one)) for one in kept]
    print("\n".join(table([("incident", "phase", "size", "when"), *rows])))
    return ExitCode.OK


def _show(one: Kept, *, as_json: bool) -> int:
    from vllm_supervisor.core.plain import printable

    verdict = _verdict(one)
    if as_json:
        print(json.dumps({"name": one.name, "path": str(one.path), **verdict}, indent=2))
        return ExitCode.OK
    print(f"{one.name}  ({_when(one)})\n{one.path}\n")
    print(printable(str(verdict.get("sentence", "its verdict cannot be read"))))
    for name in _SHOWN:
        text = _read(one.path / name)
        if text:
            print(f"\n{name}\n" + "\n".join(f"  {printable(line)}" for line in text.splitlines()))
    lines = _read(one.path / "output.log").splitlines()[-_LAST_LINES:]
    if lines:
        print("\nthe last lines of the engine\n" + "\n".join(f"  {printable(line)}" for line in lines))
    return ExitCode.OK


def _export(chosen: list[Kept], instance: str, output: str | None) -> int:
    from vllm_supervisor.adapters.incidents import pack

    if output == "-":
        return _pack_into(sys.stdout.buffer, chosen, "standard output")
    name = chosen[0].name if len(chosen) == 1 else "incidents"
    target = Path(output) if output else Path(f"{instance}-{name}.tar.gz")
    fresh = target.with_name(f".{target.name}.part")
    try:
        # Nobody else needs to read a report, and nobody shall find half of one.
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = pack(chosen, file)
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        return _no(f"{error.filename or target} cannot be read or written: {error.strerror or error}")
    print(f"{target}: {count} files of {len(chosen)} incident{'s' if len(chosen) > 1 else ''}")
    return ExitCode.OK


def _pack_into(target: IO[bytes], chosen: list[Kept], where: str) -> int:
    from vllm_supervisor.adapters.incidents import pack

    if sys.stdout.isatty():
        return _no("an archive is not for a terminal: give a file with -o")
    try:
        pack(chosen, target)
        target.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        return _no(f"{error.filename or where} cannot be read or written: {error.strerror or error}")
    return ExitCode.OK


def _cause(one: Kept) -> dict[str, Any]:
    found = _verdict(one).get("cause")
    return found if isinstance(found, dict) else {}


def _verdict(one: Kept) -> dict[str, Any]:
    try:
        found = json.loads(_read(one.path / "verdict.json"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _when(one: Kept) -> str:
    at = _verdict(one).get("failed_at")
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if isinstance(at, (int, float)) else "-"
