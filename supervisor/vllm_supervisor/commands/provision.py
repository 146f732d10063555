"""`provision`: the engine's environment and the model at the same time; each can fail and go on alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from vllm_supervisor.core.exits import NOPERM, ExitCode

from .showing import LINE_EVERY_S, cut

HELP = "install vLLM and download a model, both at once"
ENVIRONMENT, MODEL = "environment", "model"
BAR = 16
"""Columns of a bar."""


class _Show(Protocol):
    def __call__(self, which: str, text: str, done: int = 0, total: int = 0) -> None:
        """Progress of one of the two."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "provision",
        help=HELP,
        description="Makes the environment of the engine (/opt/vllm-VERSION, and the link /opt/vllm when there is "
        "none) and downloads the model into its directory, at the same time, with a progress bar each. When one fails "
        "the other goes on; the same command then does only what is left.",
        epilog="Exit codes: 0 both are there, 75 something is left (call it again), 77 a directory is another "
        "user's, 78 something cannot work, "
        "64 usage.",
    )
    parser.add_argument("model", metavar="MODEL", help="its name at the hub, such as nvidia/Kimi-K2.5-NVFP4")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="directory of the checkpoint")
    parser.add_argument("--vllm", required=True, metavar="VERSION", help="such as 0.32.0")
    parser.add_argument("--engine-dir", type=Path, default=Path("/opt/vllm"), metavar="LINK", help="%(default)s")
    parser.add_argument(
        "--python", default="/usr/bin/python3", metavar="PATH", help="for the environment (%(default)s)"
    )
    parser.add_argument("--pip-args", default="", metavar="ARGS", help="for pip, such as '--extra-index-url URL'")
    parser.add_argument("--fetch-args", default="", metavar="ARGS", help="for `fetch`, such as '--workers 16'")


def run(args: argparse.Namespace) -> int:
    """Do both; the worse of the two exit codes."""
    wrong = _wrong(args)
    if wrong:
        print(f"vllm-supervisor provision: {wrong}", file=sys.stderr)
        return ExitCode.USAGE
    ended: dict[str, tuple[int, str]] = {}
    with _showing() as show:
        threads = [
            threading.Thread(target=lambda: ended.update({ENVIRONMENT: _environment(args, show)})),
            threading.Thread(target=lambda: ended.update({MODEL: _fetched(args, show)})),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for which, (code, said) in ended.items():
        print(f"{which}: {said}", file=sys.stderr if code else sys.stdout)
    codes = [code for code, _ in ended.values()]
    return max(codes) if len(codes) == 2 else ExitCode.BUG


def _wrong(args: argparse.Namespace) -> str:
    """What cannot be meant, before anything is done; empty when all can."""
    from vllm_supervisor.adapters.environment import VERSION, interpreter_problem

    if not VERSION.fullmatch(args.vllm):
        return f"{args.vllm!r} is no version; such as --vllm 0.32.0"
    problem = interpreter_problem(args.python)
    if problem:
        return f"--python: {problem}; give the path of a Python 3, such as /usr/bin/python3"
    for option, text in (("--pip-args", args.pip_args), ("--fetch-args", args.fetch_args)):
        try:
            shlex.split(text)
        except ValueError:
            return f"{option}: a quotation mark in {text!r} has no other one"
    return ""


def _environment(args: argparse.Namespace, show: _Show) -> tuple[int, str]:
    from vllm_supervisor.adapters.environment import InstallError, make, turn

    link: Path = args.engine_dir.absolute()
    place = link.with_name(f"{link.name}-{args.vllm}")
    log = place.with_name(f"{place.name}.log")
    try:
        make(
            place,
            args.vllm,
            python=args.python,
            pip_args=shlex.split(args.pip_args),
            log=log,
            say=lambda text: show(ENVIRONMENT, text),
        )
        if not link.exists():
            turn(link, place)
    except InstallError as error:
        show(ENVIRONMENT, f"failed: {error}", 0, 1)
        if error.denied:
            return NOPERM, str(error)
        if error.absent:
            return ExitCode.PERMANENT, f"{error}; is there such a version for this Python, and where does pip look?"
        return ExitCode.TRANSIENT, f"{error}; call the same command again"
    show(ENVIRONMENT, "done", 1, 1)
    return ExitCode.OK, f"vLLM {args.vllm} is in {place}"


def _fetched(args: argparse.Namespace, show: _Show) -> tuple[int, str]:
    try:
        return _model(args, show)
    except OSError as error:
        return ExitCode.BUG, f"{sys.executable} cannot be run: {error.strerror}"


def _model(args: argparse.Namespace, show: _Show) -> tuple[int, str]:
    more = shlex.split(args.fetch_args)
    command = [
        sys.executable,
        "-P",
        "-m",
        "vllm_supervisor",
        "fetch",
        args.model,
        "--to",
        str(args.to.absolute()),
        *more,
    ]
    last = ""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "VSUP_PROGRESS": "json"},
    ) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in process.stdout:
            if line.startswith("@progress "):
                with contextlib.suppress(ValueError, KeyError):
                    seen = json.loads(line.removeprefix("@progress "))
                    show(MODEL, seen["text"], seen["done"], seen["total"])
            else:
                last = line.strip() or last
    if process.returncode:
        show(MODEL, f"failed: {last.removeprefix('vllm-supervisor fetch: ')}", 0, 1)
    return process.returncode, last.removeprefix("vllm-supervisor fetch: ")


@contextlib.contextmanager
def _showing() -> Iterator[_Show]:
    """Two bars on a terminal; elsewhere a line for each now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        # pip's words may hold brackets that are no markup.
        about = TextColumn("{task.description}", markup=False)
        console = Console(stderr=True)
        columns = (TextColumn(f"{{task.fields[name]:<{len(ENVIRONMENT)}}}"), BarColumn(BAR), about)
        with Progress(*columns, console=console) as progress:
            # Of an installation nobody knows the total before its end.
            bars = {name: progress.add_task("", name=name, total=None) for name in (ENVIRONMENT, MODEL)}

            def paint(which: str, text: str, done: int = 0, total: int = 0) -> None:
                # Left to itself, it would shorten names and bars on a narrow terminal, and not the text.
                room = max(console.width - len(ENVIRONMENT) - BAR - 2, 10)
                progress.update(bars[which], description=cut(text, room), completed=done, total=total or None)

            yield paint
        return
    told: dict[str, float] = {}

    def tell(which: str, text: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if now - told.get(which, -LINE_EVERY_S) >= LINE_EVERY_S or (total and done >= total):
            told[which] = now
            print(f"{which:<12} {text}", file=sys.stderr, flush=True)

    yield tell
