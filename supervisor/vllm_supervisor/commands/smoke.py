"""`smoke`: ask the running engine the questions with a known answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from vllm_supervisor.core.exits import ExitCode

from .places import add_places, find, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_supervisor.config.questions import Smoke as Questions
    from vllm_supervisor.core.endpoint import Endpoint
    from vllm_supervisor.core.smoke import Pace, Smoke
    from vllm_supervisor.daemon.instance import Instance
    from vllm_supervisor.daemon.locate import Place

HELP = "ask the running engine questions with a known answer"
NOT_RIGHT, ONLY_SLOW = 1, 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "smoke",
        help=HELP,
        description="Asks the running engine the questions of the configuration's table [smoke] and judges each "
        "answer: right, cut off, empty, wrong, garbage or slow. Reasoning and content are shown apart; time to first "
        "token and tokens a second stand beside those of the last starts. An answer is slow at half of their pace "
        "(three of them at least; other requests that run excuse it), or when it has not ended within smoke.timeout_s.",
        epilog="Exit codes: 0 right, 1 not right or no answer, 2 right but slow, 64 no such instance or not "
        "the head of a cluster, 77 only root and the service's user may read the configuration, 78 the "
        "configuration cannot be used.",
    )
    add_places(parser)
    parser.add_argument("--question", metavar="TEXT", help="another question, instead of all of them")
    parser.add_argument("--expect", metavar="TEXT", help="what the answer must contain, in any case")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="room for reasoning and answer")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(args: argparse.Namespace) -> int:
    """Ask; 0 for the right answers."""
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    instance = read(args, place)
    if isinstance(instance, int):
        return instance
    if args.max_tokens is not None and args.max_tokens < 1:
        print(f"vllm-supervisor smoke: --max-tokens must be at least 1, not {args.max_tokens}", file=sys.stderr)
        return ExitCode.USAGE
    elsewhere = instance.not_here("smoke")
    if elsewhere:
        print(f"vllm-supervisor smoke: {elsewhere}", file=sys.stderr)
        return ExitCode.USAGE
    given = {"question": args.question, "expect": args.expect, "max_tokens": args.max_tokens}
    given["questions"] = [] if args.question else None
    asked = instance.settings.smoke.model_copy(update={key: value for key, value in given.items() if value is not None})
    endpoint = instance.endpoint()
    if not endpoint.api_key:
        # The unit's credential is not for us; a person may give the key as clients do.
        endpoint = replace(endpoint, api_key=os.environ.get("VLLM_API_KEY", ""))
    last, excuse = _before(place, instance, asked)
    return asyncio.run(_ask(args.instance or place.name, endpoint, asked, last, excuse, as_json=args.json))


def _before(place: Place, instance: Instance, asked: Questions) -> tuple[tuple[Pace, ...], str]:
    """The pace of the last tests, and why it is not to be compared with; empty when it is."""
    from vllm_supervisor.core.smoke import last_paces
    from vllm_supervisor.daemon.ask import AskError, ask, past
    from vllm_supervisor.daemon.smoke import asked_of

    settings = instance.settings.model_copy(update={"smoke": asked})
    try:
        last = last_paces(past(place), asked_of(settings))
        running = (ask(place).get("requests") or {}).get("running") or 0
    except AskError as error:
        return (), str(error)
    return last, f"not compared: {running:.0f} other requests run" if running else ""


async def _ask(
    name: str, endpoint: Endpoint, asked: Questions, last: Sequence[Pace], excuse: str, *, as_json: bool
) -> int:
    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.core.smoke import SLOW
    from vllm_supervisor.daemon.smoke import converse

    http = EngineHttp(endpoint, answer_timeout_s=asked.timeout_s)
    began = time.monotonic()
    try:
        found = await converse(http, asked, last, excused=bool(excuse))
    finally:
        await http.close()
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps(_plain(found, seconds, last, excuse)))
    else:
        _show(
            found, seconds, excuse, f"the engine at {endpoint.uds or endpoint.url}", f"`vllm-supervisor status {name}`"
        )
    if not found.passed:
        return NOT_RIGHT
    return ONLY_SLOW if found.verdict == SLOW else ExitCode.OK


def _plain(found: Smoke, seconds: float, last: Sequence[Pace], excuse: str) -> dict[str, Any]:
    """For scripts: the whole test, the answer that decided it, and every answer."""
    answers = [
        {"question": one.question, "verdict": one.verdict, **(asdict(one.answer) if one.answer is not None else {})}
        for one in found.answers
    ]
    decisive = next((answer for answer in answers if answer["verdict"] != "right"), answers[0])
    return {
        **decisive,
        "verdict": found.verdict,
        "passed": found.passed,
        "sentence": found.sentence,
        "seconds": round(seconds, 3),
        **asdict(found.pace),
        "last": [asdict(pace) for pace in last],
        "excuse": excuse,
        "answers": answers,
    }


def _show(found: Smoke, seconds: float, excuse: str, whom: str, remedy: str) -> None:
    from vllm_supervisor.core.plain import printable
    from vllm_supervisor.core.words import duration

    if all(one.answer is None for one in found.answers):
        said = f"{whom} gave no answer: {printable(found.sentence)}; {remedy} says where it stands"
        print(f"vllm-supervisor smoke: {said}", file=sys.stderr)
        return
    for one in found.answers:
        print(f"question   {printable(one.question)}")
        if one.answer is not None:
            print(f"reasoning  {printable(one.answer.reasoning.strip()) or '-'}")
            print(f"content    {printable(one.answer.content.strip()) or '-'}")
        if len(found.answers) > 1:
            print(f"judged     {printable(one.sentence if one.verdict != 'right' else one.verdict)}")
    print(f"verdict    {printable(found.sentence if found.verdict != 'right' else found.verdict)}")
    tokens = sum(one.answer.tokens for one in found.answers if one.answer is not None)
    print(f"took       {duration(seconds)}, {tokens} tokens")
    if found.beside:
        print(f"speed      {found.beside}")
    if excuse:
        print(f"           {printable(excuse)}")
