"""The weight files of a model's directory: which, how large, on what, and who has them mapped."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.core.readahead.order import Order, chosen, in_load_order, index_name


class NothingToReadError(Exception):
    """There are no files to read ahead; the message says why."""


@dataclass(frozen=True, slots=True)
class File:
    """A weight file: where it really is, its bytes, and its number in its file system."""

    path: str
    size: int
    inode: int


def weight_files(order: Order) -> list[File]:
    """The files that the engine will load, in its order; links of an overlay are followed.

    Raises:
        NothingToReadError: there are none, or they cannot be looked at.
    """
    root = Path(order.model)
    try:
        names = chosen(os.listdir(root), order.load_format)
        if not names:
            raise NothingToReadError(f"{root} holds no weight files")
        names = _indexed(root, order.load_format, names)
        if not order.unordered:
            names = in_load_order(names)
        found = []
        for name in names:
            real = os.path.realpath(root / name)
            status = os.stat(real)  # noqa: PTH116 - the resolved name is what is opened later
            found.append(File(real, status.st_size, status.st_ino))
    except OSError as problem:
        raise NothingToReadError(f"{problem.filename or root} cannot be read: {problem.strerror}") from None
    if not sum(file.size for file in found):
        raise NothingToReadError(f"the weight files of {root} are empty")
    return found


def _indexed(root: Path, load_format: str, names: list[str]) -> list[str]:
    """Those that the index names; all of them where there is no index, or none that can be read."""
    try:
        document = json.loads((root / index_name(load_format, names)).read_bytes())
        wanted = set(document["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return names
    return [name for name in names if name in wanted] or names


def file_system(path: str, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that holds a path, as the engine finds it: by the longest mount point."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            parts = line.split()
            if len(parts) < 3:
                continue
            point = parts[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, parts[2]
    return kind


def mapped(files: Sequence[File], proc: Path = Path("/proc")) -> frozenset[int]:
    """The numbers of the files that any process has mapped, as far as we may look."""
    known = {(str(file.inode), os.path.basename(file.path)): number for number, file in enumerate(files)}  # noqa: PTH119
    found: set[int] = set()
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (proc / entry / "maps").read_text(errors="replace").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[4] != "0":
                    number = known.get((fields[4], fields[5].rpartition("/")[2]))
                    if number is not None:
                        found.add(number)
    return frozenset(found)
