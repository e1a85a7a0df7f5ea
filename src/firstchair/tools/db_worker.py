"""The process that runs one statement on a SQLite file for ``db_query``, which can be killed where a thread cannot.

SQLite looks at its clock between two instructions, and one of them may be ``instr`` of two values of a megabyte: half
a minute. Standard input is the job as JSON, standard output what came of it, ``{"lines", "has_more", "changed"}`` or
``{"failed", "message"}`` with SQLite's own name of the error. Nothing here needs a package, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from firstchair.tools.db_rows import row_line
from firstchair.tools.worker_limits import limit_worker

MAX_VALUE_BYTES = 1_000_000
"""Of a text or blob that a query makes; SQLite's own limit is a gigabyte."""
MEMORY_BYTES = 512 << 20
"""Of the process: a row may have thousands of such values, and a sort any number of rows."""
GRACE_S = 3.0
"""More than a query's time, for this process to start and to stop by itself."""
OUT_OF_MEMORY = "MEMORY"
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
_REFUSED = frozenset({"load_extension", "fts3_tokenizer", "printf", "format"})
"""The first two call whatever code they are given the place of; the others fill 2^31 characters in one go."""
MAX_PATTERN_BYTES = 1_000
"""Of LIKE and GLOB, which compare a value with it in one go too."""
_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the clock; some tenths of a millisecond."""


def connect(path: Path, *, read_only: bool, wait_s: float) -> sqlite3.Connection:
    """A connection that commits each statement, and waits for another one's lock."""
    mode = "ro" if read_only else "rw"
    # isolation_level=None: what a statement changes is kept at once, and no other transaction is opened.
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=wait_s, isolation_level=None
    )
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def main() -> None:
    """Run the job, and say what came of it."""
    job = json.load(sys.stdin)
    # Processor time beside the clock of whoever waits, who may be killed.
    limit_worker(memory_bytes=MEMORY_BYTES, cpu_s=job["seconds"] + GRACE_S)
    try:
        answer = _run(**job)
    except MemoryError:
        answer = {"failed": OUT_OF_MEMORY, "message": ""}
    # A warning: two statements at once, before Python 3.12. No Unicode: half a surrogate pair.
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        answer = {"failed": error_name(error), "message": str(error)}
    json.dump(answer, sys.stdout)


def error_name(error: Exception) -> str:
    """SQLite's name of an error, ``SQLITE_BUSY`` say; empty for what Python's driver itself says."""
    return getattr(error, "sqlite_errorname", None) or ""


def _run(path: str, read_only: bool, sql: str, rows: int, seconds: float) -> dict[str, Any]:
    with contextlib.closing(connect(Path(path), read_only=read_only, wait_s=seconds)) as connection:
        connection.execute(f"PRAGMA query_only = {'ON' if read_only else 'OFF'}")
        connection.execute("PRAGMA temp_store = MEMORY")  # no sort fills a disk
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(lambda *asked: _authorized(read_only, *asked))
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        cursor = connection.execute(sql)
        if cursor.description is None:
            return {"lines": [], "has_more": False, "changed": max(0, cursor.rowcount)}
        columns = [name for name, *_ in cursor.description]
        lines: list[str] = []
        for row in cursor:
            if len(lines) == rows:
                return {"lines": lines, "has_more": True, "changed": None}
            lines.append(row_line(columns, row))
    return {"lines": lines, "has_more": False, "changed": None}


def _authorized(read_only: bool, action: int, first: str | None, second: str | None, *_: object) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if (first or "").lower() in _PRAGMAS else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED:
        return sqlite3.SQLITE_DENY
    allowed = _READING if read_only else _READING | _WRITING
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY
