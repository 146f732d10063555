"""The shape of the history: its tables, and which columns a start fills while it goes on."""

from __future__ import annotations

from typing import Final

SCHEMA: Final = 1

CREATE: Final = """
CREATE TABLE IF NOT EXISTS starts (
    id INTEGER PRIMARY KEY,
    began_at REAL NOT NULL,
    ended_at REAL,
    ready_at REAL,
    boot_id TEXT NOT NULL,
    config_hash TEXT NOT NULL,
    version TEXT NOT NULL,
    engine_version TEXT NOT NULL DEFAULT '',
    attempt INTEGER NOT NULL DEFAULT 1,
    outcome TEXT NOT NULL DEFAULT '',
    exit_code INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    class TEXT NOT NULL DEFAULT '',
    sentence TEXT NOT NULL DEFAULT '',
    phases TEXT NOT NULL DEFAULT '{}',
    gaps TEXT NOT NULL DEFAULT '{}',
    figures TEXT NOT NULL DEFAULT '{}',
    smoke TEXT NOT NULL DEFAULT '{}',
    incident TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS totals (
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (kind, label)
);
"""

COLUMNS: Final = frozenset(
    {
        "ended_at",
        "ready_at",
        "engine_version",
        "outcome",
        "exit_code",
        "reason",
        "class",
        "sentence",
        "phases",
        "gaps",
        "figures",
        "smoke",
        "incident",
    },
)
