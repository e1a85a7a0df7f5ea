"""SQLite for ``db_query``: the file is opened read-only, and SQLite asks an authorizer before each thing it does.

A statement runs in a process of its own (``db_worker.py``), which is killed when it does not stop by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import firstchair
from firstchair.core.errors import ConfigError, RunFailed, UpstreamError
from firstchair.tools import db_worker
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.db_rows import Limits, Rows

_BROKEN: tuple[str, ...] = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")
_BROKEN += ("SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL")
_RETRYABLE = ("SQLITE_BUSY", "SQLITE_LOCKED")
_START = "import sys; sys.path.insert(0, sys.argv[1]); from firstchair.tools.db_worker import main; main()"


class SqliteDatabase:
    """A SQLite file. Raises ``ConfigError`` when it is not there or is none."""

    dialect = "SQLite"

    def __init__(self, path: Path, *, read_only: bool):
        self._path, self._read_only = path, read_only
        if not path.is_file():
            raise ConfigError(f"db_query.url: {path}: no such file; check the path")
        try:
            with contextlib.closing(db_worker.connect(path, read_only=read_only, wait_s=0.0)) as connection:
                connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            if db_worker.error_name(error).startswith(_RETRYABLE):  # it is one, and at work
                return
            raise ConfigError(f"db_query.url: {path}: {error}; name a SQLite file") from None

    def query(self, sql: str, limits: Limits) -> Rows:
        """Run one statement."""
        job = {"path": str(self._path), "read_only": self._read_only, "sql": sql}
        answer = _worked({**job, "rows": limits.rows, "seconds": limits.seconds}, limits)
        if "failed" in answer:
            raise self._told(answer["failed"], answer["message"], limits)
        return Rows(tuple(answer["lines"]), has_more=answer["has_more"], changed=answer["changed"])

    def _told(self, name: str, message: str, limits: Limits) -> Exception:
        """What SQLite said, as ours."""
        if name.startswith(_BROKEN):
            return UpstreamError(f"{self._path}: {message}", retryable=name.startswith(_RETRYABLE))
        if name == "SQLITE_INTERRUPT":
            return _too_slow(limits)
        if name in (db_worker.OUT_OF_MEMORY, "SQLITE_NOMEM"):
            return ToolFailed(
                Failure.TOO_LARGE, f"it took more than {db_worker.MEMORY_BYTES >> 20} MB; ask for less at once"
            )
        if name.startswith(("SQLITE_AUTH", "SQLITE_READONLY")) or "not authorized" in message:
            allowed = "only queries are" if self._read_only else "it is not"
            return ToolFailed(Failure.REFUSED, f"{message}; {allowed} allowed here")
        return ToolFailed(Failure.FAILED, f"{message}; correct the statement")


def _worked(job: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The worker's answer; however this ends, the worker has ended."""
    root = str(Path(firstchair.__file__).parents[1])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, root],
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=limits.seconds + db_worker.GRACE_S,
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _too_slow(limits) from None
    try:
        return dict(json.loads(done.stdout))
    except (ValueError, TypeError):
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise RunFailed(f"db_query: its process ended with {done.returncode}: {said}") from None


def _too_slow(limits: Limits) -> ToolFailed:
    return ToolFailed(Failure.TIMEOUT, f"the query was stopped after {limits.seconds:g} s; ask for less at once")
