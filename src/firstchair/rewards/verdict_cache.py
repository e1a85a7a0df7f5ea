"""Verdicts by the content of their question, in SQLite: several processes may use one file at the same time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from firstchair.core.errors import ConfigError, RunFailed

WAIT_S = 30.0
"""For another process that is writing."""


class VerdictCache:
    """Key → the verdict's JSON text. ``path`` ``None`` keeps them in memory."""

    def __init__(self, path: Path | None = None):
        """Raises ``ConfigError`` when ``path`` cannot be opened or is another kind of file."""
        self._path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # A client may be made in one thread and used in another; never in two at once.
            self._database = sqlite3.connect(
                path or ":memory:", timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
            # Readers do not wait for a writer; a crash may lose the last verdicts, which are then asked for again.
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT NOT NULL)"
            )
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{path}: cannot be used as a cache of verdicts: {error}; give another file") from None

    def get(self, key: str) -> str | None:
        """The verdict kept under ``key``."""
        row = self._run("SELECT verdict FROM verdicts WHERE key = ?", key).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, verdict: str) -> str:
        """Keep ``verdict`` and return what is kept from now on: the first of two processes is the one that counts."""
        self._run("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", key, verdict)
        return self.get(key) or verdict

    def forget(self, key: str) -> None:
        """Drop what is kept under ``key``."""
        self._run("DELETE FROM verdicts WHERE key = ?", key)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _run(self, statement: str, *values: str) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise RunFailed(
                f"the cache of verdicts {self._path}: {error}; free space or choose another file"
            ) from error
