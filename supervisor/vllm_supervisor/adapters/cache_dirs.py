"""What lies in the engine's caches, counted; nothing in them is changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Found:
    """A directory of a cache.

    Attributes:
        state: `warm` with files in it, `cold` without, `missing`, or `closed` to us.
        files: How many.
        size: Their bytes.
    """

    state: str
    files: int = 0
    size: int = 0


def look_into(path: str) -> Found:
    """Count the files below a directory; links are not followed."""
    if not path.startswith("/"):
        return Found("missing")
    problems: list[OSError] = []
    files = size = 0
    for place, _, names in os.walk(path, onerror=problems.append):
        for name in names:
            try:
                status = (Path(place) / name).lstat()
            except OSError:
                continue  # an engine that runs replaces files
            files, size = files + 1, size + status.st_size
    if files:
        return Found("warm", files, size)
    if any(isinstance(problem, PermissionError) for problem in problems):
        return Found("closed")
    return Found("missing") if problems else Found("cold")
