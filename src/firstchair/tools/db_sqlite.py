"""SQLite for ``db_query``: the file is opened read-only, and SQLite asks an authorizer before each thing it does."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.db_rows import Limits, Rows, row_line

MAX_VALUE_BYTES = 1_000_000
"""Of a text or blob that a query makes; SQLite's own limit is a gigabyte."""
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_WRITING = frozenset(
    {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_ALTER_TABLE}
    | {sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW}
    | {sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_REINDEX}
)
_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)
"""Those that only describe; others change settings, or files."""
_BROKEN: tuple[str, ...] = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")
_BROKEN += ("SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_PROTOCOL")
_RETRYABLE = ("SQLITE_BUSY", "SQLITE_LOCKED")
_UNSTOPPABLE = frozenset({"printf", "format"})
"""Functions that fill 2^31 characters between two looks at the clock, as many times as a statement calls them."""
MAX_PATTERN_BYTES = 1_000
"""Of LIKE and GLOB, which compare a value with it in one go too."""
_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the clock; some tenths of a millisecond."""


class SqliteDatabase:
    """A SQLite file. Raises ``ConfigError`` when it is not there or is none."""

    dialect = "SQLite"

    def __init__(self, path: Path, *, read_only: bool):
        self._path, self._read_only = path, read_only
        if not path.is_file():
            what = "a directory" if path.is_dir() else "no such file"
            raise ConfigError(f"db_query.url: {path}: {what}; check the path, which begins where the command runs")
        try:
            with contextlib.closing(self._connect(0.0)) as connection:
                connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            if _name(error).startswith(_RETRYABLE):  # it is one, and at work
                return
            raise ConfigError(f"db_query.url: {path}: {error}; name a SQLite file") from None

    def query(self, sql: str, limits: Limits) -> Rows:
        """Run one statement."""
        with self._failures(limits), contextlib.closing(self._connect(limits.seconds)) as connection:
            connection.execute(f"PRAGMA query_only = {'ON' if self._read_only else 'OFF'}")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.set_authorizer(self._authorize)
            deadline = time.monotonic() + limits.seconds
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            cursor = connection.execute(sql)
            if cursor.description is None:
                return Rows((), changed=max(0, cursor.rowcount))
            found = cursor.fetchmany(limits.rows + 1)
            columns = [name for name, *_ in cursor.description]
        lines = tuple(row_line(columns, row) for row in found[: limits.rows])
        return Rows(lines, has_more=len(found) > limits.rows)

    def _connect(self, wait_s: float) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rw"
        # isolation_level=None: what a statement changes is kept at once, and no other transaction is opened.
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode={mode}", uri=True, timeout=wait_s, isolation_level=None
        )
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_PRAGMA:
            return sqlite3.SQLITE_OK if (first or "").lower() in _PRAGMAS else sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in {"load_extension", *_UNSTOPPABLE}:
            return sqlite3.SQLITE_DENY
        allowed = _READING if self._read_only else _READING | _WRITING
        return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY

    @contextlib.contextmanager
    def _failures(self, limits: Limits) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:  # a warning: two statements at once, before Python 3.12
            name = _name(error)
            if name.startswith(_BROKEN):
                raise UpstreamError(f"{self._path}: {error}", retryable=name.startswith(_RETRYABLE)) from error
            if name == "SQLITE_INTERRUPT":
                raise ToolFailed(
                    Failure.TIMEOUT, f"the query was stopped after {limits.seconds:g} s; ask for less at once"
                ) from None
            if name.startswith(("SQLITE_AUTH", "SQLITE_READONLY")) or "not authorized" in str(error):
                allowed = "only queries are" if self._read_only else "it is not"
                raise ToolFailed(Failure.REFUSED, f"{error}; {allowed} allowed here") from None
            raise ToolFailed(Failure.FAILED, f"{error}; correct the statement") from None


def _name(error: Exception) -> str:
    """SQLite's name of an error, ``SQLITE_BUSY`` say; empty for what Python's driver itself says."""
    return getattr(error, "sqlite_errorname", None) or ""
