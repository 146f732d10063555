"""The record of an operation: one file a line of JSON each, flushed to the disk before the next thing is done.

It lies in a directory of root's own: the state directory of an instance belongs to the service's
user, and root must not write where that user can put a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_supervisor.core.steps import Record

ROOT = Path("/var/lib/vllm-supervisor-operations")
NAME = "operation.jsonl"


class JournalError(Exception):
    """The record cannot be read or written; the message is one sentence."""


class StepsJournal:
    """The present (or last) operation on one instance.

    Args:
        instance: The instance's name.
        root: Where the records of all instances lie.
    """

    def __init__(self, instance: str, root: Path = ROOT) -> None:
        self.directory = root / instance
        self.path = self.directory / NAME

    def begin(self, verb: str, params: dict[str, Any], by: str) -> None:
        """Begin a new operation; the record of the one before is kept as `.last`.

        Raises:
            JournalError: it cannot be written.
        """
        head = {"operation": verb, "params": params, "by": by, "at": time.time()}
        fresh = self.path.with_suffix(".new")
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _append(fresh, head, os.O_TRUNC)
            with contextlib.suppress(FileNotFoundError):
                self.path.replace(self.path.with_suffix(".last"))
            fresh.replace(self.path)
            _sync_directory(self.directory)
        except OSError as error:
            raise JournalError(f"{self.path} cannot be written: {error.strerror}") from None

    def write(self, **line: Any) -> None:
        """Add a line; it is on the disk when this returns.

        Raises:
            JournalError: it cannot be written.
        """
        try:
            _append(self.path, {**line, "at": time.time()}, os.O_APPEND)
        except OSError as error:
            raise JournalError(f"{self.path} cannot be written: {error.strerror}") from None

    def lines(self) -> list[dict[str, Any]]:
        """Every whole line; none when there was never an operation.

        Raises:
            JournalError: it cannot be read.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"{self.path} cannot be read: {error.strerror}") from None
        # A kill in the middle of a write leaves a torn line, which never happened.
        return [line for line in map(_parsed, text.splitlines()) if line is not None]

    def head(self) -> dict[str, Any] | None:
        """The operation: `operation`, `params`, `by`, `at`; None when there is none."""
        lines = self.lines()
        return lines[0] if lines and "operation" in lines[0] else None

    def records(self) -> list[Record]:
        """What was recorded of steps."""
        return [Record(line["step"], line["state"], line.get("text", "")) for line in self.lines() if "step" in line]

    def finished(self) -> dict[str, Any] | None:
        """The line of the end: `finished` (exit code) and `sentence`; None while there is none."""
        return next((line for line in reversed(self.lines()) if "finished" in line), None)

    def fact(self, name: str) -> Any:
        """The last value recorded under a name; None when there is none."""
        return next((line["value"] for line in reversed(self.lines()) if line.get("fact") == name), None)

    def keep_fact(self, name: str, value: Any) -> None:
        """Record a value for whoever goes on after us."""
        self.write(fact=name, value=value)

    def follow(self, seen: int) -> Iterator[dict[str, Any]]:
        """The lines after the first `seen`."""
        yield from self.lines()[seen:]


def _append(path: Path, line: dict[str, Any], how: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how, 0o600)
    try:
        data = json.dumps(line).encode() + b"\n"
        if how == os.O_APPEND and not _ends_whole(path):
            data = b"\n" + data
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
