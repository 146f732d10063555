"""What a download still needs, in which order, whether it fits on the disk, and how long it will take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .words import duration, size

SPARE_BYTES = 2 << 30
"""Room that a download leaves on the disk: a full one takes the history and the journal down, too."""

TRIES = 8
"""A file that fails so often in a row without a byte of progress is given up."""

DAMAGED_TRIES = 3
"""A file that arrives damaged so often is wrong at its source."""

LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file as the hub describes it: size in bytes, SHA-256 (large files) or git's SHA-1 (small ones)."""

    name: str
    size: int | None
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a model at one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    def as_json(self) -> dict[str, Any]:
        """As it is kept beside the files."""
        files = [[file.name, file.size, file.sha256, file.git_sha1] for file in self.files]
        return {"repo": self.repo, "commit": self.commit, "files": files}


def read_listing(found: Any) -> Listing | None:
    """A listing that was kept; None when it is none."""
    try:
        files = tuple(RemoteFile(str(name), wide, str(sha), str(git)) for name, wide, sha, git in found["files"])
        return Listing(str(found["repo"]), str(found["commit"]), files)
    except (KeyError, TypeError, ValueError):
        return None


class Standing(StrEnum):
    """How a local file compares with the hub's."""

    WHOLE = "whole"
    UNVERIFIED = "unverified"
    MISSING = "missing"
    WRONG_SIZE = "wrong size"
    DAMAGED = "damaged"


def standings(listing: Listing, sizes: Mapping[str, int], verified: Iterable[str]) -> dict[str, Standing]:
    """Each file's standing by its size, and by what was verified before.

    Args:
        listing: The hub's files.
        sizes: Bytes of the local files by name.
        verified: Names whose present content was found right.
    """
    right = set(verified)
    found = {}
    for file in listing.files:
        here = sizes.get(file.name)
        if here is None:
            found[file.name] = Standing.MISSING
        elif file.size is not None and here != file.size:
            found[file.name] = Standing.WRONG_SIZE
        else:
            found[file.name] = Standing.WHOLE if file.name in right else Standing.UNVERIFIED
    return found


def unsafe(listing: Listing) -> str:
    """A name that would leave the directory; empty when there is none."""
    for file in listing.files:
        parts = file.name.split("/")
        if file.name.startswith("/") or ".." in parts or "\\" in file.name or "" in parts:
            return file.name
    return ""


def order(names: Iterable[str], listing: Listing) -> list[RemoteFile]:
    """What to fetch first: small files (a wrong configuration shows at once), then shards by name."""
    wanted = set(names)
    files = [file for file in listing.files if file.name in wanted]
    return sorted(files, key=lambda file: (file.name.endswith(".safetensors"), file.name))


def lacking(files: Sequence[RemoteFile], there: Mapping[str, int]) -> int:
    """Bytes that are still to come; `there` has those of files that are begun."""
    return sum(max((file.size or 0) - there.get(file.name, 0), 0) for file in files)


def space_problem(lacking_bytes: int, free_bytes: int, where: str) -> str:
    """Why it does not fit, in a sentence; empty when it does."""
    if not lacking_bytes or lacking_bytes + SPARE_BYTES <= free_bytes:
        return ""
    short = lacking_bytes + SPARE_BYTES - free_bytes
    return (
        f"{size(lacking_bytes)} are still to come and {size(free_bytes)} are free in {where}: "
        f"free {size(short)} (with {size(SPARE_BYTES)} to spare), or choose another directory with --to"
    )


_ADDRESS = re.compile(
    r"https?://(?P<user>[^\s/?#@]+@)?(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.\-]{1,253})(?::(?P<port>\d{1,5}))?(?:/[^\s?#]*)?"
)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9_.\-]{0,95})?")


def is_model_name(name: str) -> bool:
    """Whether this can be the name of a model at a hub: `maker/model`, or `model` alone."""
    return _NAME.fullmatch(name) is not None and name[-1] not in ".-"


def is_address(endpoint: str) -> bool:
    """Whether this can be the address of a hub: `http` or `https`, a host, perhaps a port and a path."""
    found = _ADDRESS.fullmatch(endpoint)
    return found is not None and (found["port"] is None or 0 < int(found["port"]) <= 65_535)


def shown_address(endpoint: str) -> str:
    """The address as it may be printed: without a password that stands in it."""
    found = _ADDRESS.fullmatch(endpoint)
    return endpoint.replace(found["user"], "", 1) if found and found["user"] else endpoint


def wait_before(tries: int, first_s: float) -> float:
    """Seconds before the next try, doubling; `tries` is how many failed in a row."""
    return float(min(first_s * 2.0 ** min(max(tries - 1, 0), 20), LONGEST_WAIT_S))


class Meter:
    """Rate and remaining time of a transfer, from its last minute.

    Args:
        total: Bytes in all.
    """

    WINDOW_S = 60.0

    def __init__(self, total: int) -> None:
        self.total = total
        self._seen: list[tuple[float, int]] = []

    def see(self, now: float, done: int) -> None:
        """So many bytes are there now."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.WINDOW_S:
            self._seen.pop(0)

    def rate(self) -> float | None:
        """Bytes a second; None before two sights."""
        if len(self._seen) < 2:
            return None
        (first, low), (last, high) = self._seen[0], self._seen[-1]
        return max(high - low, 0) / (last - first) if last > first else None

    def words(self) -> str:
        """`12.0 GiB of 540.0 GiB (2 %), 410.0 MiB/s, about 22 min left`."""
        done = self._seen[-1][1] if self._seen else 0
        share = f" ({100 * done // self.total} %)" if self.total else ""
        told = f"{size(done)} of {size(self.total)}{share}"
        rate = self.rate()
        if not rate or done >= self.total:
            return told
        return f"{told}, {size(rate)}/s, about {duration((self.total - done) / rate)} left"
