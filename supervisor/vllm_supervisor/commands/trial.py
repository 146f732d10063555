"""`trial`: what a reload asks of the new code before the old one gives way. Not for people."""

from __future__ import annotations

import argparse
import json
import sys
import time

from vllm_supervisor.core.exits import ExitCode

from . import run as run_verb


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb, without a line in --help."""
    parser = subparsers.add_parser("trial")
    inner = parser.add_subparsers(dest="inner", required=True)
    run_verb.add_parser(inner)


def run(args: argparse.Namespace) -> int:
    """Read the carried state from stdin; say as JSON whether it and the configuration can be used."""
    from vllm_supervisor.core.events import Tick
    from vllm_supervisor.core.status import sentence
    from vllm_supervisor.core.step import step
    from vllm_supervisor.daemon.carry import CarryError, changed_engine_settings, from_text
    from vllm_supervisor.daemon.instance import read_instance

    instance = read_instance(
        args.config.absolute(), state_dir=args.state_dir, runtime_dir=args.runtime_dir, holds_weights=args.weights
    )
    if isinstance(instance, list):
        return _say({"refused": "; ".join(str(problem) for problem in instance)})
    try:
        carried = from_text(sys.stdin.read())
        old = carried.applied_to(instance)
        state = carried.resumed(carried.state.policy)
        now = time.monotonic()
        state, _ = step(state, Tick(), now)
        sentence(state, now)
    except (CarryError, ValueError) as error:
        return _say({"refused": str(error)})
    before = {**old.settings.engine.model_dump(mode="json"), "env": {**old.env, **old.settings.engine.env}}
    after = {
        **instance.settings.engine.model_dump(mode="json"),
        "env": {**instance.env, **instance.settings.engine.env},
    }
    return _say({"changed": changed_engine_settings(before, after)})


def _say(verdict: dict[str, object]) -> int:
    print(json.dumps(verdict))
    return ExitCode.PERMANENT if "refused" in verdict else ExitCode.OK
