"""What lies in an environment, a checkpoint and a file, for a manifest: names, versions, sizes, hashes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HASHED_BYTES = 64 << 20
"""Larger files are identified by size and time: 540 GB would take longer than a snapshot may."""

_DISTRIBUTION = re.compile(r"(.+)-([^-]+)\.(?:dist-info|egg-info)")


def packages(roots: Iterable[Path]) -> dict[str, str]:
    """The exact packages of an environment, by the names of their metadata directories."""
    found: dict[str, str] = {}
    for root in roots:
        try:
            names = sorted(os.listdir(root))
        except OSError:
            continue
        for name in names:
            match = _DISTRIBUTION.fullmatch(name)
            if match:
                found.setdefault(match[1].replace("_", "-").lower(), match[2])
    return found


def files(directory: Path) -> dict[str, dict[str, Any]]:
    """A checkpoint's identity: size of every file, the hash of small ones, the time of large ones."""
    found: dict[str, dict[str, Any]] = {}
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith(".") and path.is_file())
    except OSError:
        return found
    for path in paths:
        stat = path.stat()
        entry: dict[str, Any] = {"size": stat.st_size}
        if stat.st_size <= HASHED_BYTES and path.suffix != ".safetensors":
            entry["sha256"] = hash_of(path)
        else:
            entry["modified"] = int(stat.st_mtime)
        found[path.name] = entry
    return found


def hash_of(path: Path) -> str:
    """The SHA-256 of a file; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file as a whole, on the disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
