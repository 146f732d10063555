"""The machine that `plan` plans for: described by options, or the GPUs that are here."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from vllm_supervisor.core.plan.sizes import find_card, parse_size


@dataclass(frozen=True, slots=True)
class Machine:
    """How many GPUs, their memory in bytes and their compute capability; None is unknown."""

    count: int | None = None
    memory: int | None = None
    capability: tuple[int, int] | None = None


class UsageError(Exception):
    """A wrong command line, as one sentence."""


class NoMachineError(UsageError):
    """Nothing is wrong with the command line, but there is no GPU to plan for."""


def machine_of(args: argparse.Namespace) -> Machine:
    """The machine that the options describe, or the one that is here."""
    count, named = None, args.gpu
    if args.gpus is not None:
        match = re.fullmatch(r"\s*(\d{1,5})?\s*[x*]?\s*(.*?)\s*", args.gpus, re.IGNORECASE)
        if match is None or match[1] == "0" or not (match[1] or match[2]):
            raise UsageError(f"--gpus takes a number from 1 up, not {args.gpus!r}")
        if match[2] and find_card(match[2]) is None:
            raise UsageError(f"--gpus takes a number up to 99999 and a card that is known here, not {args.gpus!r}")
        count, named = int(match[1] or 1), named or match[2] or None
    memory = parse_size(args.gpu_memory) if args.gpu_memory else None
    if args.gpu_memory and memory is None:
        named = named or args.gpu_memory
    capability = _capability(args.compute_capability)
    if named:
        card = find_card(named)
        if card is None:
            raise UsageError(f"{named!r} is neither a size nor a card that is known here; give --gpu-memory 95.6GiB")
        return Machine(count or 1, memory or card[1], capability or card[2])
    if memory is not None:
        if memory < 1:
            raise UsageError("--gpu-memory must be more than nothing")
        return Machine(count or 1, memory, capability)
    return _machine_here(count, capability)


def _machine_here(count: int | None, capability: tuple[int, int] | None) -> Machine:
    from vllm_supervisor.adapters.nvml_once import read_once

    seen = read_once()
    if seen is None or not seen.gpus:
        return Machine(count, None, capability)
    smallest = min(seen.gpus, key=lambda gpu: gpu.total_bytes)
    return Machine(count or len(seen.gpus), smallest.total_bytes, capability or smallest.compute_capability)


def size_of(text: str | None, option: str) -> int | None:
    """A size in bytes; None where none is given."""
    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise UsageError(f"{option} takes a size such as 11.7GiB, not {text!r}")
    return size


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,2})\.?(\d)", text)
    if match is None:
        raise UsageError(f"--compute-capability takes a number such as 12.0, not {text!r}")
    return int(match[1]), int(match[2])
