"""The directory of incidents on disk: written, rotated, listed, read and packed.

Writing is the last thing that a failing start does, so a full or broken disk costs the rest of the
incident and nothing else. Only directories with an incident's name are ever touched.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vllm_supervisor.core.incident import NAME, directory_name, to_remove

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """An incident on disk: its name, its directory and its size in bytes."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """What became of an attempt: the directory, None when there is none, and what was lost and why."""

    path: Path | None
    trouble: str = ""


class Incidents:
    """The incidents of one instance.

    Args:
        root: Their directory; it is made when it is needed.
        keep: How many are kept; with 0 none is ever written.
        max_mib: MiB that all of them together may take.
    """

    def __init__(self, root: Path, *, keep: int = 20, max_mib: int = 64) -> None:
        self.root = root
        self._keep = keep
        self._limit = max_mib * MIB

    @property
    def characters(self) -> int:
        """Room for the texts of one incident: a quarter of all, as a character may take several bytes."""
        return self._limit // 4

    def write(self, at: float, reason: str, files: Iterable[tuple[str, str]]) -> Written:
        """Write one, after older ones have made room for it; never raises OSError.

        Args:
            at: When it happened, in seconds of the wall clock.
            reason: The slug of its cause.
            files: Names and texts, the most important first.
        """
        if self._keep < 1:
            return Written(None)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
        self.rotate(self._keep - 1, self._limit * 3 // 4)
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o750)
            path = self.root / directory_name(stamp, reason, lambda name: (self.root / name).exists())
            path.mkdir(mode=0o750)
        except OSError as error:
            return Written(None, f"the incident cannot be saved in {self.root}: {error.strerror or error}")
        lost, why = self._write_all(path, files)
        if len(lost) and not any(path.iterdir()):
            with contextlib.suppress(OSError):
                path.rmdir()
            return Written(None, f"the incident cannot be saved in {self.root}: {why}")
        self.rotate(self._keep, self._limit)
        return Written(path, f"the incident {path} lacks {', '.join(lost)}: {why}" if lost else "")

    def _write_all(self, path: Path, files: Iterable[tuple[str, str]]) -> tuple[list[str], str]:
        lost: list[str] = []
        why = ""
        left = self._limit
        for name, text in files:
            data = text.encode("utf-8", errors="replace")
            if len(data) > left:
                lost.append(name)
                why = why or "it is larger than incident.max_mib allows"
                continue
            target = path / name
            try:
                target.parent.mkdir(exist_ok=True, mode=0o750)
                _write_whole(target, data)
            except OSError as error:
                lost.append(name)
                why = why or error.strerror or str(error)
                continue
            left -= len(data)
        return lost, why

    def rotate(self, keep: int, limit: int) -> list[str]:
        """Remove the oldest until no more than `keep` are left, with no more than `limit` bytes together."""
        gone = to_remove({kept.name: kept.size for kept in self.all()}, keep, limit)
        for name in gone:
            shutil.rmtree(self.root / name, ignore_errors=True)
        return gone

    def all(self) -> list[Kept]:
        """The incidents that are there, the oldest first; none when the directory cannot be read."""
        try:
            found = [entry for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        named = sorted((entry for entry in found if NAME.fullmatch(entry.name)), key=lambda entry: entry.name)
        return [Kept(entry.name, Path(entry.path), _size(Path(entry.path))) for entry in named]


def _write_whole(target: Path, data: bytes) -> None:
    """A file that is whole or not there."""
    fresh = target.with_name(f".{target.name}.part")
    try:
        with fresh.open("wb") as file:
            file.write(data)
        fresh.chmod(0o640)
        fresh.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _size(directory: Path) -> int:
    total = 0
    for path in contents(directory):
        with contextlib.suppress(OSError):
            total += path.stat(follow_symlinks=False).st_size
    return total


def contents(directory: Path) -> list[Path]:
    """The plain files of an incident, the verdict first."""
    found: list[Path] = []
    for parent, _, names in os.walk(directory):
        found += [Path(parent) / name for name in names if not name.endswith(".part")]
    plain = [path for path in found if path.is_file() and not path.is_symlink()]
    return sorted(plain, key=lambda path: (path.parent != directory, path.name != "verdict.json", str(path)))


def pack(incidents: Sequence[Kept], target: IO[bytes]) -> int:
    """Write one tar.gz of incidents; how many files it holds.

    Raises:
        OSError: an incident cannot be read, or the target cannot be written.
    """
    count = 0
    with (
        gzip.GzipFile(fileobj=target, mode="wb", filename="") as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for kept in incidents:
            for path in contents(kept.path):
                data = path.read_bytes()
                member = tarfile.TarInfo(f"{kept.name}/{path.relative_to(kept.path)}")
                member.size, member.mtime, member.mode = len(data), path.stat().st_mtime, 0o640
                tar.addfile(member, io.BytesIO(data))
                count += 1
    return count
