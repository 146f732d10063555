"""One way to load, measured by the engine's own interpreter in a process of its own; we never import vllm.

The child imports what it needs, says so, and then reads the files once for each line that it is told; what it reads
goes through one small buffer, as an engine copies it away, so that it holds no more than the way itself does.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

IMPORT_LIMIT_S = 180.0
RUN_LIMIT_S = 900.0

SCRIPT = r"""
import importlib.util, json, os, sys, time
told = json.loads(sys.stdin.readline())
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def say(**what):
    out.write(json.dumps(what) + "\n")
    out.flush()
try:
    if told["package"] and importlib.util.find_spec(told["package"]) is None:
        say(missing=told["package"])
        sys.exit(0)
    import torch
    from vllm.model_executor.model_loader import weight_utils as utils
    ways = {
        "default": lambda files: utils.safetensors_weights_iterator(files, False),
        "prefetch": lambda files: utils.safetensors_weights_iterator(files, False, "prefetch"),
        "eager": lambda files: utils.safetensors_weights_iterator(files, False, "eager"),
        "multithread": lambda files: utils.multi_thread_safetensors_weights_iterator(files, False, max_workers=8),
        "fastsafetensors": lambda files: utils.fastsafetensors_weights_iterator(files, False),
        "runai_streamer": lambda files: utils.runai_safetensors_weights_iterator(files, False),
        "instanttensor": lambda files: utils.instanttensor_weights_iterator(files, False),
    }
    way = ways[told["way"]]
    buffer = torch.empty(16 << 20, dtype=torch.uint8)
    say(ready=True)
    for line in sys.stdin:
        began, count, on_gpu = time.monotonic(), 0, False
        for _, tensor in way(told["files"]):
            if getattr(tensor, "is_cuda", False):
                # It is where it belongs; a copy back would be counted as reading.
                count, on_gpu = count + tensor.numel() * tensor.element_size(), True
                continue
            flat = tensor.reshape(-1).view(torch.uint8)
            for at in range(0, flat.numel(), buffer.numel()):
                piece = flat[at : at + buffer.numel()]
                buffer[: piece.numel()].copy_(piece)
            count += flat.numel()
            del tensor, flat
        if on_gpu:
            torch.cuda.synchronize()
        say(seconds=time.monotonic() - began, bytes=count)
except BaseException as problem:
    if not isinstance(problem, SystemExit):
        say(problem=(f"{type(problem).__name__}: {problem}".splitlines() or [""])[0][:300])
"""


class TrialError(Exception):
    """It could not be measured; the message is half a sentence."""


class Trial:
    """A child that measures one way on some files.

    Args:
        python: The engine's interpreter.
        environment: The engine's.
        way: Its name.
        package: What must be installed; empty for nothing.
        files: The shards.
    """

    def __init__(
        self, python: Path, environment: Mapping[str, str], way: str, package: str, files: Sequence[str]
    ) -> None:
        self._rest = b""
        try:
            self._process = subprocess.Popen(
                [str(python), "-P", "-c", SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environment, "VLLM_LOGGING_LEVEL": "ERROR"},
                cwd="/",
            )
        except OSError as problem:
            raise TrialError(f"{python} cannot be executed: {problem.strerror}") from None
        self._order = json.dumps({"way": way, "package": package, "files": list(files)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def prepare(self) -> None:
        """Let it import what it needs.

        Raises:
            TrialError: it cannot, or a package is not installed.
        """
        said = self._ask(self._order, IMPORT_LIMIT_S)
        if "missing" in said:
            raise TrialError(f"not installed (package {str(said['missing']).replace('_', '-')})")

    def measure(self) -> float:
        """Read all once; bytes a second.

        Raises:
            TrialError: it failed.
        """
        said = self._ask("go", RUN_LIMIT_S)
        seconds, count = said.get("seconds"), said.get("bytes")
        if not isinstance(seconds, float) or not isinstance(count, int) or not count:
            raise TrialError("it read nothing")
        return count / max(seconds, 1e-6)

    def _ask(self, line: str, limit_s: float) -> dict[str, object]:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        assert self._process.stdout is not None  # noqa: S101
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise TrialError("its process ended") from None
        descriptor, ends = self._process.stdout.fileno(), time.monotonic() + limit_s
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], max(ends - time.monotonic(), 0.0))[0]:
                raise TrialError(f"it did not end within {limit_s:.0f} s")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise TrialError("its process ended")
            self._rest += piece
        answer, _, self._rest = self._rest.partition(b"\n")
        try:
            said = json.loads(answer)
        except ValueError:
            raise TrialError("it answered nonsense") from None
        if not isinstance(said, dict):
            raise TrialError("it answered nonsense")
        if "problem" in said:
            raise TrialError(str(said["problem"]))
        return said
