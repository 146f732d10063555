"""The files of a download on the disk: sizes, what is begun, hashes at a bounded rate, what was verified."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_supervisor.core.download import Listing, RemoteFile, read_listing

OWN = ".cache/vllm-supervisor"
CHUNK = 1 << 22


class LocalFiles:
    """One directory that a model is downloaded into.

    Args:
        directory: It.

    Attributes:
        read_only: Nothing is kept there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.read_only = False
        self._own = directory / OWN

    def prepare(self) -> Path:
        """Make the directory; the path of the lock in it.

        Raises:
            OSError: it cannot be made.
        """
        self._own.mkdir(parents=True, exist_ok=True)
        return self._own / "lock"

    def sizes(self, listing: Listing) -> dict[str, int]:
        """Bytes of the files that are there, by name."""
        found = {}
        for file in listing.files:
            with contextlib.suppress(OSError):
                found[file.name] = (self.directory / file.name).stat().st_size
        return found

    def part(self, file: RemoteFile) -> Path:
        """Where a file lies until it is whole and right; another content of the same name has another place."""
        mark = (file.sha256 or file.git_sha1 or str(file.size))[:16]
        return self._own / "parts" / f"{file.name}.{mark}"

    def begun(self, listing: Listing) -> dict[str, int]:
        """Bytes of files that are not complete yet, by name."""
        found = {}
        for file in listing.files:
            with contextlib.suppress(OSError):
                found[file.name] = self.part(file).stat().st_size
        return found

    def clear_parts(self, listing: Listing) -> None:
        """Remove what belongs to no file of the listing: an earlier revision's."""
        wanted = {self.part(file) for file in listing.files}
        for path in sorted((self._own / "parts").glob("**/*")):
            if path.is_file() and path not in wanted:
                path.unlink(missing_ok=True)

    def take(self, file: RemoteFile) -> None:
        """Put a part that is right into its place; on the disk when this returns."""
        part, target = self.part(file), self.directory / file.name
        with part.open("rb") as opened:
            os.fsync(opened.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)

    def free_bytes(self) -> int:
        """What is free where the directory lies."""
        return shutil.disk_usage(self.directory).free

    def listing(self) -> Listing | None:
        """The hub's listing as it was kept; None when there is none."""
        return read_listing(self._read("listing.json"))

    def keep_listing(self, listing: Listing) -> None:
        """Keep it, for a later look without the hub."""
        self._write("listing.json", listing.as_json())

    def verified(self) -> set[str]:
        """Names whose content was found right and has not been touched since."""
        marks = self._read("verified.json")
        return {name for name, mark in marks.items() if mark == self._mark(name)} if isinstance(marks, dict) else set()

    def keep_verified(self, names: set[str]) -> None:
        """Keep which are right."""
        self._write("verified.json", {name: self._mark(name) for name in sorted(names)})

    def _mark(self, name: str) -> list[int] | None:
        with contextlib.suppress(OSError):
            found = (self.directory / name).stat()
            return [found.st_size, found.st_mtime_ns]
        return None

    def right(self, file: RemoteFile, pace: Callable[[int], None], path: Path | None = None) -> bool:
        """Whether the content is the hub's; `pace` is told each piece's bytes and may hold us back.

        Args:
            file: What it should be.
            pace: Called with each piece's length.
            path: Another place than its own.
        """
        path = path or self.directory / file.name
        wide = path.stat().st_size
        if file.size is not None and wide != file.size:
            return False
        if not file.sha256 and not file.git_sha1:
            return True
        digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % wide, usedforsecurity=False)
        with path.open("rb", buffering=0) as opened:
            while piece := opened.read(CHUNK):
                digest.update(piece)
                pace(len(piece))
            # Reading 540 GB must not push the engine's files out of the page cache.
            with contextlib.suppress(OSError):
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return digest.hexdigest() == (file.sha256 or file.git_sha1)

    def forget(self, name: str) -> None:
        """Remove a damaged file."""
        (self.directory / name).unlink(missing_ok=True)

    def hand_over(self) -> None:
        """What root made here becomes the directory's owner's, who can then go on with it; no link is followed."""
        if self.read_only:
            return
        owner = self.directory.stat()
        if os.geteuid() or not owner.st_uid:
            return
        listing = self.listing()
        ours = {Path(OWN).parts[0], *(file.name.split("/")[0] for file in (listing.files if listing else ()))}
        for path, folders, names, at in os.fwalk(self.directory):
            if Path(path) == self.directory:
                folders[:] = ours & set(folders)
                names[:] = ours & set(names)
            for name in (*folders, *names):
                with contextlib.suppress(OSError):
                    found = os.lstat(name, dir_fd=at)
                    alone = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
                    if not found.st_uid and (alone or stat.S_ISDIR(found.st_mode)):
                        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=at, follow_symlinks=False)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._own / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _write(self, name: str, value: Any) -> None:
        if self.read_only:
            return
        fresh = self._own / f"{name}.new"
        fresh.write_text(json.dumps(value), encoding="utf-8")
        fresh.replace(self._own / name)


class Pace:
    """Holds a reader back to a rate.

    Args:
        bytes_per_second: The rate; None for no bound.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic()
        self.done = 0

    def __call__(self, count: int) -> None:
        """So many bytes were read."""
        self.done += count
        if self._rate:
            ahead = self.done / self._rate - (time.monotonic() - self._began)
            if ahead > 0:
                time.sleep(ahead)
