"""The record of starts: one SQLite file in the state directory.

It is never a reason not to start: a corrupt file is set aside with a message, a full disk or an
unreadable directory leaves the daemon without a history, and says so. Write-ahead logging makes a
kill in the middle harmless.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_supervisor.core.history_schema import COLUMNS, CREATE, SCHEMA
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.redact import clean
from vllm_supervisor.core.retry import PastStart

BUSY_S = 2.0


class History:
    """The starts of one instance.

    Args:
        path: The SQLite file; its directory must exist. None keeps everything in memory.
        keep: Starts that are kept; older ones only live on in the totals.
        read_only: For the command line beside a running daemon.
        redact: Takes the secrets out of a text before it is written.

    Attributes:
        trouble: Why the file could not be used, in one sentence; empty while all is well.
    """

    def __init__(
        self, path: Path | None, *, keep: int = 500, read_only: bool = False, redact: Callable[[str], str] = str
    ) -> None:
        self.path = path
        self.trouble = ""
        self._keep = keep
        self._redact = redact
        self._id: int | None = None
        self._db = self._open(path, read_only=read_only)

    def _open(self, path: Path | None, *, read_only: bool) -> sqlite3.Connection:
        if path is None:
            return _prepared(_connect(":memory:"))
        try:
            if read_only:
                db = _connect(f"file:{path}?mode=ro")
                db.execute("SELECT 1 FROM starts LIMIT 1")
                return db
            return _prepared(_connect(f"file:{path}"))
        except sqlite3.DatabaseError as error:
            unusable = not isinstance(error, sqlite3.OperationalError)
            if read_only or not unusable:
                self.trouble = f"the history {path} cannot be used ({error}); this start is not remembered"
                return _from_what_can_be_read(path)
            aside = path.with_name(f"{path.name}.corrupt-{int(path.stat().st_mtime)}")
            self.trouble = f"the history {path} was corrupt ({error}) and is set aside as {aside.name}"
            with contextlib.suppress(OSError):
                path.replace(aside)
                for suffix in ("-wal", "-shm"):
                    Path(f"{path}{suffix}").unlink(missing_ok=True)
            try:
                return _prepared(_connect(f"file:{path}"))
            except sqlite3.DatabaseError:
                return _prepared(_connect(":memory:"))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection | None]:
        """A transaction; a full disk or a lock is trouble, never an exception."""
        try:
            with self._db:
                yield self._db
        except sqlite3.Error as error:
            self.trouble = f"the history {self.path} cannot be written ({error})"

    def begin(self, *, began_at: float, boot_id: str, config_hash: str, version: str, attempt: int) -> None:
        """A start has begun."""
        with self._writing() as db:
            if db is None:
                return
            cursor = db.execute(
                "INSERT INTO starts (began_at, boot_id, config_hash, version, attempt) VALUES (?, ?, ?, ?, ?)",
                (began_at, boot_id, config_hash, version, attempt),
            )
            self._id = cursor.lastrowid
            db.execute(
                "DELETE FROM starts WHERE id NOT IN (SELECT id FROM starts ORDER BY id DESC LIMIT ?)",
                (self._keep,),
            )

    @property
    def current(self) -> int | None:
        """The number of the present start, to be carried over a re-execution."""
        return self._id

    def resume(self, number: int | None) -> None:
        """Go on with a start that an earlier process image began."""
        self._id = number

    def update(self, **columns: Any) -> None:
        """Write what is known now of the present start; mappings are stored as JSON."""
        unknown = columns.keys() - COLUMNS
        if unknown:
            raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
        if self._id is None or not columns:
            return
        names = list(columns)
        clear = [clean(value, self._redact) for value in columns.values()]
        values = [json.dumps(value) if isinstance(value, Mapping) else value for value in clear]
        with self._writing() as db:
            if db is not None:
                setters = ", ".join(f"{name} = ?" for name in names)
                db.execute(f"UPDATE starts SET {setters} WHERE id = ?", (*values, self._id))  # noqa: S608 - names are checked

    def count(self, kind: str, label: str) -> None:
        """Add one to a total that outlives the rows: `starts` by outcome, `failures` by `reason/class`."""
        with self._writing() as db:
            if db is not None:
                db.execute(
                    "INSERT INTO totals VALUES (?, ?, 1) ON CONFLICT (kind, label) DO UPDATE SET count = count + 1",
                    (kind, label),
                )

    def totals(self, kind: str) -> dict[str, int]:
        """The totals of one kind by label."""
        with contextlib.suppress(sqlite3.Error):
            rows = self._db.execute("SELECT label, count FROM totals WHERE kind = ?", (kind,))
            return {str(label): int(count) for label, count in rows}
        return {}

    def rows(self, limit: int = 100) -> list[dict[str, Any]]:
        """The last starts as they are stored, oldest first; JSON columns are decoded."""
        try:
            found = self._db.execute("SELECT * FROM starts ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        except sqlite3.Error as error:
            self.trouble = f"the history {self.path} cannot be read ({error})"
            return []
        return [_decoded(row) for row in reversed(found)]

    def past(self, limit: int = 100) -> list[PastStart]:
        """The earlier starts, oldest first, without the present one."""
        return [_past(row) for row in self.rows(limit) if row["id"] != self._id]

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


def _connect(target: str) -> sqlite3.Connection:
    db = sqlite3.connect(target, uri=target.startswith("file:"), timeout=BUSY_S, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db


def _from_what_can_be_read(path: Path) -> sqlite3.Connection:
    """Memory with the earlier starts in it: on a full or read-only disk they still say how long to wait.

    A write-ahead log cannot be opened there, so the file is read as it is (`immutable`).
    """
    memory = _prepared(_connect(":memory:"))
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(f"file:{path}?mode=ro&immutable=1")) as db:
        rows = [dict(row) for row in db.execute("SELECT * FROM starts ORDER BY id")]
        totals = [tuple(row) for row in db.execute("SELECT kind, label, count FROM totals")]
        for row in rows:
            marks = ", ".join("?" * len(row))
            memory.execute(f"INSERT INTO starts ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))  # noqa: S608 - our own columns
        memory.executemany("INSERT INTO totals VALUES (?, ?, ?)", totals)
    memory.commit()
    return memory


def _prepared(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
        raise sqlite3.DatabaseError("quick_check failed")
    db.executescript(CREATE)
    db.execute(f"PRAGMA user_version={SCHEMA}")
    return db


def _decoded(row: sqlite3.Row) -> dict[str, Any]:
    values = dict(row)
    for name in ("phases", "gaps", "figures", "smoke"):
        try:
            values[name] = json.loads(values[name])
        except (TypeError, ValueError):
            values[name] = {}
    return values


def _past(row: Mapping[str, Any]) -> PastStart:
    return PastStart(
        began_at=row["began_at"],
        ended_at=row["ended_at"],
        boot_id=row["boot_id"],
        ready_at=row["ready_at"],
        outcome=row["outcome"],
        exit_code=row["exit_code"],
        reason=row["reason"],
        sentence=row["sentence"],
        config_hash=row["config_hash"],
        engine_version=row["engine_version"],
        phases=_by_phase(row["phases"]),
        gaps=_by_phase(row["gaps"]),
    )


def _by_phase(values: Mapping[str, Any]) -> dict[Phase, float]:
    known = {phase.value for phase in Phase}
    return {Phase(name): float(seconds) for name, seconds in values.items() if name in known}
