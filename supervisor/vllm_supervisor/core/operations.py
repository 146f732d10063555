"""The steps of each operation, and what may be asked of whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .steps import Outcome, Step, When
from .words import duration

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.-]{1,200}")
SUCCESSES = 5
"""So many successful starts make the expected outage."""

FREE_WITHIN_S = 60.0
"""So long after the stop may memory of the GPUs be held before a snapshot fails; an operator may say otherwise."""

_CHECK = Step("check", "checking the configuration that the next start will use", Outcome.REFUSED)
_AHEAD = Step("ahead", "reading the weights into memory while it still serves", Outcome.PREPARE_FAILED)
_WAIT = Step("wait", "waiting until it can answer", Outcome.DOWN, after="restart")
_SMOKE = Step("smoke", "asking the question with a known answer", Outcome.SMOKE_WRONG, after="wait")
_RESTART = Step("restart", "draining, stopping and starting it", Outcome.DOWN)

_SYNC = Step("sync", "writing everything to the disks", Outcome.SYNC_FAILED)
_MANIFEST = Step("manifest", "writing the manifest", Outcome.MANIFEST_FAILED)
_COMMAND = Step("command", "running the given command", Outcome.COMMAND_FAILED, repeatable=False)

_BACK = (
    Step("back", "turning the link back", Outcome.DOWN, When.AFTER_FAILURE, after="switch"),
    Step("back-restart", "starting the old version", Outcome.DOWN, When.AFTER_FAILURE, after="switch"),
    Step("back-wait", "waiting until the old version can answer", Outcome.DOWN, When.AFTER_FAILURE, after="switch"),
    Step("back-smoke", "asking the old version the question", Outcome.DOWN, When.AFTER_FAILURE, after="switch"),
)


def by_hand(verb: str, config: str, version: str = "") -> str:
    """How a person does without systemd what an operation does with it, in one sentence.

    Args:
        verb: `restart`, `snapshot` or `upgrade`.
        config: The configuration file.
        version: Of vLLM, for `upgrade`.
    """
    end, begin = "end its `vllm-supervisor run` with Ctrl-C", f"`vllm-supervisor run --config {config}`"
    match verb:
        case "snapshot":
            return f"{end}, run the command yourself, then start it again with {begin}"
        case "upgrade":
            make = f"make an environment for it (`make engine VLLM={version or 'VERSION'}`), name it in engine.command"
            return f"{make}, {end} and start it again with {begin}"
        case _:
            return f"{end} and start it again with {begin}"


def steps_of(verb: str, params: Mapping[str, Any]) -> tuple[Step, ...]:
    """The steps of an operation.

    Args:
        verb: `restart`, `snapshot` or `upgrade`.
        params: As the verb recorded them; `stop` of a snapshot.

    Raises:
        KeyError: there is no such operation.
    """
    match verb:
        case "restart":
            return (_CHECK, _AHEAD, _RESTART, _WAIT, _SMOKE)
        case "snapshot" if not params["stop"]:
            return (_SYNC, _MANIFEST, _COMMAND)
        case "snapshot":
            return (
                _CHECK,
                _AHEAD,
                Step("stop", "draining and stopping it", Outcome.STOP_FAILED),
                Step("gpus", "seeing that the GPUs are free", Outcome.GPUS_HELD),
                _SYNC,
                _MANIFEST,
                _COMMAND,
                Step("start", "starting it again", Outcome.DOWN, When.ALWAYS, after="stop"),
                Step("wait", "waiting until it can answer", Outcome.DOWN, When.ALWAYS, after="stop"),
                Step(
                    "smoke", "asking the question with a known answer", Outcome.SMOKE_WRONG, When.ALWAYS, after="stop"
                ),
            )
        case "upgrade":
            return (
                Step("install", "installing the new version beside the old one", Outcome.PREPARE_FAILED),
                _CHECK,
                _AHEAD,
                Step("switch", "turning the link", Outcome.PREPARE_FAILED),
                _RESTART,
                _WAIT,
                _SMOKE,
                *_BACK,
            )
    raise KeyError(verb)


def expected_outage(rows: Sequence[Mapping[str, Any]], drain_s: float) -> str:
    """How long nothing will answer, in a sentence, from the history.

    Args:
        rows: The last starts, oldest first.
        drain_s: How long running requests may finish.
    """
    loads = [row["ready_at"] - row["began_at"] for row in rows if row.get("ready_at")][-SUCCESSES:]
    drain = f"up to {duration(drain_s)} for running requests"
    if not loads:
        return f"how long the start takes is not known: no start of it is in the history; before that, {drain}"
    usual, longest = sorted(loads)[len(loads) // 2], max(loads)
    counted = "the last start" if len(loads) == 1 else f"the last {len(loads)} starts"
    return f"about {duration(usual)} (by {counted}; the longest took {duration(longest)}), and before that {drain}"


def unit_of(name: str, kimi_like: Mapping[str, str]) -> str:
    """The unit of an instance: NAME.service when that runs NAME.toml, else vllm@NAME.service.

    Args:
        name: The instance.
        kimi_like: LoadState and ExecStart of NAME.service.
    """
    own = kimi_like.get("LoadState") == "loaded" and f"/{name}.toml" in kimi_like.get("ExecStart", "")
    return f"{name}.service" if own else f"vllm@{name}.service"


def transient_unit(name: str) -> str:
    """The unit in which an operation on an instance runs: one at a time, because systemd has one of each name."""
    return f"vllm-supervisor-operation-{name}.service"


def progress_line(status: Mapping[str, Any]) -> str:
    """What a waiting step says of the instance: its phase and its sentence."""
    return f"{status.get('phase', '')}: {status.get('status', '')}"


def changed(text: str, seen: Iterable[str]) -> bool:
    """Whether a line of progress says something new; figures alone are not new."""
    plain = re.sub(r"[\d.]+", "#", text)
    return all(plain != re.sub(r"[\d.]+", "#", other) for other in seen)
