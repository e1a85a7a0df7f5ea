"""Recorded calls of many conversations, interleaved in a file, brought back conversation by conversation.

They wait in a private temporary SQLite database that vanishes with the process, so memory is one conversation.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from firstchair.core.errors import RunFailed
from firstchair.traces.branches import RecordedCall


class SpooledCall(NamedTuple):
    """A call with what decides its order, and where it was read."""

    call: RecordedCall
    origin: str


class CallSpool:
    """Collects calls by conversation; reading gives conversations in order of appearance, calls in order of time."""

    def __init__(self) -> None:
        # The empty name is SQLite's word for a temporary file that it deletes at once.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE keys (number INTEGER PRIMARY KEY, key TEXT UNIQUE)")
        self._database.execute(
            "CREATE TABLE calls (key INTEGER, start INTEGER, arrived INTEGER, origin TEXT, body BLOB)"
        )
        self._database.execute("BEGIN")
        self._arrived = 0

    def __enter__(self) -> CallSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __len__(self) -> int:
        return self._arrived

    def put(self, key: str, start: int | None, call: RecordedCall, origin: str) -> None:
        """Add one call of conversation ``key``, begun at ``start`` (any unit; ``None``: as they arrive)."""
        try:
            self._database.execute("INSERT OR IGNORE INTO keys (key) VALUES (?)", (key,))
            (number,) = self._database.execute("SELECT number FROM keys WHERE key = ?", (key,)).fetchone()
            row = (number, start or 0, self._arrived, origin, msgspec.json.encode(call))
            self._database.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise RunFailed(f"cannot spool to the temporary directory: {error}; free space or set TMPDIR") from error
        self._arrived += 1

    def conversations(self) -> Iterator[tuple[str, list[SpooledCall]]]:
        """``(key, calls)`` for each conversation."""
        try:
            self._database.execute("CREATE INDEX by_key ON calls (key, start, arrived)")
            rows = self._database.execute(
                "SELECT keys.key, calls.origin, calls.body FROM keys JOIN calls ON calls.key = keys.number "
                "ORDER BY keys.number, calls.start, calls.arrived"
            )
            for key, group in itertools.groupby(rows, key=lambda row: row[0]):
                yield key, [SpooledCall(_decoder.decode(body), origin) for _, origin, body in group]
        except sqlite3.Error as error:
            raise RunFailed(f"cannot read the spool: {error}; free space or set TMPDIR") from error


_decoder = msgspec.json.Decoder(RecordedCall)
