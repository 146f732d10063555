"""Reading the shards of an instance into memory before it is (re)started: what, how far, and what is said of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vllm_supervisor.core.readahead.order import Order, order_for
from vllm_supervisor.core.readahead.report import Doing, Report, percent
from vllm_supervisor.core.words import size

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_supervisor.daemon.instance import Instance

    from .runner import Say
    from .served import Served

PATIENCE_S = 30.0
"""So long may it be paused before the restart goes on without it."""
LIMIT_S = 1800.0


class Ahead:
    """The step `ahead` of an operation on one instance; it never keeps the operation from going on."""

    def __init__(self, it: Served) -> None:
        self.it = it

    def read(self, _: str, say: Say) -> str:
        """Read all of it when all of it fits; what happened, in a sentence."""
        try:
            if self.it.show("ActiveState").get("ActiveState") != "active":
                return "it does not serve now: the start reads ahead by itself"
            instance = self.it.instance()
            environment = unit_environment(self.it.show("Environment").get("Environment", ""))
            order = order_of(instance, environment, instance.settings.load.readahead, replaces=True)
            if isinstance(order, str):
                return f"nothing is read: {order}"
            return follow(replace(order, whole_only=True), say)
        except Exception as problem:  # noqa: BLE001 - a faster start is no reason for none
            return f"nothing is read: {type(problem).__name__}: {problem}"


def unit_environment(shown: str) -> dict[str, str]:
    """The variables of a unit's property `Environment`."""
    with contextlib.suppress(ValueError):
        return dict(word.split("=", 1) for word in shlex.split(shown) if "=" in word)
    return {}


def unit_seen(name: str, config: Path) -> tuple[dict[str, str], bool]:
    """The variables of an instance's unit, and whether that runs; nothing for an instance without one."""
    from vllm_supervisor.daemon.locate import SYSTEM_CONFIG

    from .served import StepError, served

    if config.parent != SYSTEM_CONFIG:
        return {}, False
    try:
        shown = served(name, config).show("Environment", "ActiveState")
    except StepError:
        return {}, False
    return unit_environment(shown.get("Environment", "")), shown.get("ActiveState") == "active"


def order_of(instance: Instance, environment: Mapping[str, str], setting: str, *, replaces: bool) -> Order | str:
    """What is to be read for the next start of an instance; else in one sentence why nothing.

    Args:
        instance: It.
        environment: Its unit's; its own configured variables come on top.
        setting: As `load.readahead`.
        replaces: An engine runs whose memory the next one gets: nothing has to be kept free for that.
    """
    from vllm_supervisor.adapters.engine_info import read_version
    from vllm_supervisor.adapters.model_path import locate
    from vllm_supervisor.core.engineflags import effective
    from vllm_supervisor.core.plan.engine import parse_version

    engine = instance.settings.engine
    env = {**os.environ, **environment, **instance.configured_env()}
    options = effective(engine.command[1:], engine.args)
    order = order_for(
        str(locate(engine.model, env, str(options.get("revision") or "main"))),
        options,
        setting,
        device=engine.device,
        version=parse_version(read_version(engine.command, env) or ""),
        runtime_dir=str(instance.runtime_dir),
    )
    if isinstance(order, str) or not replaces:
        return order
    return replace(order, engine_bytes=0, weights_stay=False)


def follow(order: Order, say: Say) -> str:
    """Read as ordered; what came of it, in a sentence."""
    from vllm_supervisor.adapters.readahead.client import read_ahead

    return outcome(watched(read_ahead(order), say))


def watched(reports: Iterable[Report], say: Say) -> Report:
    """The last report, or the one at which patience ended."""
    began = moved = time.monotonic()
    last = Report(Doing.FAILED, "its helper ended without a word")
    for last in reports:
        now = time.monotonic()
        if last.doing is Doing.PAUSED:
            if now - moved > PATIENCE_S:
                break
        else:
            moved = now
        if now - began > LIMIT_S:
            break
        say(progress(last))
    return last


def progress(report: Report) -> str:
    """Where it stands; empty while there is nothing to say."""
    if not report.total_bytes or report.doing is Doing.OFF:
        return ""
    there = report.read_bytes + report.cached_bytes
    at = f" at {size(report.rate)}/s" if report.rate else ""
    paused = f", paused: {report.why}" if report.doing is Doing.PAUSED else ""
    return f"{percent(there / report.total_bytes)} of {size(report.total_bytes)} in memory{at}{paused}"


def outcome(report: Report) -> str:
    """What came of it, in a sentence."""
    there = report.read_bytes + report.cached_bytes
    if report.doing is Doing.OFF:
        return f"nothing is read: {report.why}"
    if report.doing is Doing.FAILED:
        return f"reading ahead failed: {report.why}"
    rate = f" at {size(report.disk_rate)}/s" if report.disk_rate else ""
    parts = f"{size(report.read_bytes)} read{rate}, {size(report.cached_bytes)} found there"
    if report.doing is Doing.DONE:
        return f"all {size(report.total_bytes)} in {shards(report.shards)} in memory: {parts}"
    why = {Doing.FULL: "more does not fit", Doing.PAUSED: report.why}.get(report.doing, "it took too long")
    return f"{size(there)} of {size(report.total_bytes)} in memory ({parts}): {why}"


def shards(count: int) -> str:
    """`1 shard`, `12 shards`."""
    return "1 shard" if count == 1 else f"{count} shards"
