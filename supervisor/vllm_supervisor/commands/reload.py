"""`reload`: upgrade the supervisor of an instance in place; the engine keeps serving."""

from __future__ import annotations

import argparse
import sys
import time

from vllm_supervisor.adapters.control import ControlError, NotAllowedError, NotRunningError, request
from vllm_supervisor.core.exits import NOPERM, ExitCode

from .places import add_places, find, start_with

HELP = "re-execute the supervisor (new code, new settings of its own) while the engine keeps serving"
CODES = (
    "Exit codes: 0 the new supervisor answers, 64 no such instance or not running, 70 it did not come back, 75 refused "
    "(the old one goes on), 77 only root and the service's user may."
)
TRIAL_S = 95.0
BACK_S = 60.0
POLL_S = 0.1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("reload", help=HELP, description=HELP.capitalize() + ".", epilog=CODES)
    add_places(parser)


def run(args: argparse.Namespace) -> int:
    """Returns when the new image answers; 75 with the reason when the reload was refused."""
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    name, socket_path = place.name, place.socket_path
    try:
        reply = request(socket_path, "/reload", method="POST", timeout_s=TRIAL_S)
    except NotRunningError:
        said = f"{name} is not running; start it with `{start_with(place)}`"
        print(f"vllm-supervisor reload: {said}", file=sys.stderr)
        return ExitCode.USAGE
    except ControlError as error:
        print(f"vllm-supervisor reload: {error}", file=sys.stderr)
        return NOPERM if isinstance(error, NotAllowedError) else ExitCode.TRANSIENT
    if reply.status != 202:
        print(f"vllm-supervisor reload: refused: {reply.body.decode(errors='replace').strip()}", file=sys.stderr)
        return ExitCode.TRANSIENT
    answer = reply.json()
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        try:
            status = request(socket_path, "/status").json()
        except (NotRunningError, ControlError):
            status = {}
        if status.get("reloads", 0) > answer["reloads"]:
            print(f"{name} is supervised by version {status['version']} now; the engine went on")
            if answer.get("warning"):
                print(answer["warning"], file=sys.stderr)
            return ExitCode.OK
        time.sleep(POLL_S)
    said = f"{name} did not come back within {BACK_S:.0f} s; its log says why"
    print(f"vllm-supervisor reload: {said}", file=sys.stderr)
    return ExitCode.BUG
