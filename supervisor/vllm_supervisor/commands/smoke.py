"""`smoke`: ask the running engine the question with a known answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from vllm_supervisor.core.exits import ExitCode

from .places import add_places, find, read

if TYPE_CHECKING:
    from vllm_supervisor.config.settings import Smoke
    from vllm_supervisor.core.endpoint import Endpoint
    from vllm_supervisor.core.smoke import Answer

HELP = "ask the running engine a question with a known answer"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "smoke",
        help=HELP,
        description="Asks the running engine the question of the configuration's table [smoke] and judges the answer. "
        "Reasoning and content are shown apart.",
        epilog="Exit codes: 0 right, 1 not right, 64 no such instance, 78 the configuration cannot be used.",
    )
    add_places(parser)
    parser.add_argument("--question", metavar="TEXT", help="another question")
    parser.add_argument("--expect", metavar="TEXT", help="what the answer must contain, in any case")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="room for reasoning and answer")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(args: argparse.Namespace) -> int:
    """Ask; 0 for the right answer."""
    place = find(args)
    if place is None:
        return ExitCode.USAGE
    instance = read(args, place)
    if instance is None:
        return ExitCode.PERMANENT
    given = {"question": args.question, "expect": args.expect, "max_tokens": args.max_tokens}
    if args.max_tokens is not None and args.max_tokens < 1:
        print(f"vllm-supervisor smoke: --max-tokens must be at least 1, not {args.max_tokens}", file=sys.stderr)
        return ExitCode.USAGE
    settings = instance.settings.smoke.model_copy(update={key: value for key, value in given.items() if value})
    endpoint = instance.endpoint()
    if not endpoint.api_key:
        # The unit's credential is not for us; a person may give the key as clients do.
        endpoint = replace(endpoint, api_key=os.environ.get("VLLM_API_KEY", ""))
    return asyncio.run(_ask(endpoint, settings, as_json=args.json))


async def _ask(endpoint: Endpoint, settings: Smoke, *, as_json: bool) -> int:
    from vllm_supervisor.adapters.engine_http import EngineHttp
    from vllm_supervisor.core.smoke import RIGHT
    from vllm_supervisor.daemon.smoke import converse

    http = EngineHttp(endpoint, answer_timeout_s=settings.timeout_s)
    began = time.monotonic()
    try:
        verdict, words, answer = await converse(http, settings)
    finally:
        await http.close()
    seconds = time.monotonic() - began
    if as_json:
        body = {"verdict": verdict, "sentence": words, "seconds": round(seconds, 3)}
        print(json.dumps({**body, **(asdict(answer) if answer is not None else {})}))
    else:
        _show(settings.question, verdict, words, answer, seconds)
    return ExitCode.OK if verdict == RIGHT else 1


def _show(question: str, verdict: str, words: str, answer: Answer | None, seconds: float) -> None:
    from vllm_supervisor.core.plain import printable
    from vllm_supervisor.core.words import duration

    if answer is None:
        print(f"vllm-supervisor smoke: {printable(words)}", file=sys.stderr)
        return
    rate = f", {answer.tokens / seconds:.1f} tokens/s" if answer.tokens and seconds > 0 else ""
    print(f"question   {printable(question)}")
    print(f"reasoning  {printable(answer.reasoning.strip()) or '-'}")
    print(f"content    {printable(answer.content.strip()) or '-'}")
    print(f"verdict    {printable(words if verdict != 'right' else verdict)}")
    print(f"took       {duration(seconds)}, {answer.tokens} tokens{rate}")
