"""Connections of the trace store: SQLite with WAL by default, PostgreSQL by URL; driver errors become ours.

Writers take the whole store (``BEGIN IMMEDIATE``, an advisory lock on PostgreSQL), so "is this id here already"
and "insert it" cannot be parted by another writer. Readers never wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, NoSuchModuleError, OperationalError

from firstchair.core.errors import ConfigError, FirstchairError, RunFailed, UpstreamError

BUSY_TIMEOUT_S = 60
_WRITE = "firstchair_write"
_LOCK_KEY = 0x46495253  # "FIRS": any fixed number that no other program of the database uses


def store_url(url: str | Path) -> URL:
    """``url`` as SQLAlchemy knows it: a bare path is a SQLite file, ``postgresql://`` means the pg8000 driver.

    Raises ``ConfigError``.
    """
    text_url = str(url)
    if "://" not in text_url:
        if not text_url:
            raise ConfigError("store: found an empty path; expected a file name or a database URL")
        return URL.create("sqlite", database=str(Path(text_url).expanduser()))
    try:
        parsed = make_url(text_url)
    except ArgumentError:
        raise ConfigError("store: not a database URL; expected sqlite:///path or postgresql://user@host/db") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+pg8000")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(f"store: {parsed.get_backend_name()} is not supported; use sqlite or postgresql")
    return parsed


def open_engine(url: URL, *, must_exist: bool) -> Engine:
    """An engine for ``url``; a SQLite file is created with its folder unless ``must_exist``.

    Raises ``ConfigError`` for a missing file or driver.
    """
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise ConfigError("store: an in-memory database is lost at once; name a file")
        path = Path(str(url.database))
        if must_exist and not path.is_file():
            raise ConfigError(f"store: {path}: no such store; import something first, or correct --store")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"store: cannot create {path.parent}: {error.strerror}") from None
    try:
        engine = create_engine(url)
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigError(f"store: {error}; install firstchair[postgres]") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    else:
        # pg8000 sends executemany row by row; one statement of many rows is a dozen times faster.
        engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "begin", _begin)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own transactions begin late and not before reads; ours begin where the code says.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA cache_size = -32768")
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE, False)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
    elif writes:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One write transaction: committed when the block ends, rolled back when it raises (Ctrl-C too)."""
    with (
        translated(engine),
        engine.connect().execution_options(**{_WRITE: True}) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One read transaction: a consistent view."""
    with translated(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Driver errors as ours, without the password of the URL and without the rows that were being written."""
    try:
        yield
    except FirstchairError:
        raise
    except DBAPIError as error:
        raise _our_error(error, engine.url) from None


def _our_error(error: DBAPIError, url: URL) -> FirstchairError:
    where = url.render_as_string(hide_password=True)
    reason = str(error.orig).splitlines()[0][:300] if error.orig is not None else type(error).__name__
    low = reason.lower()
    if "disk is full" in low or "no space" in low or "disk i/o error" in low or "53100" in low:
        return RunFailed(f"store {where}: {reason}; free space and run again: nothing of this batch was kept")
    if "not a database" in low or "malformed" in low:
        return ConfigError(f"store {where}: {reason}; this file is no store; name another one")
    if "readonly" in low or "unable to open" in low or "permission denied" in low:
        hint = "" if url.database is None or os.access(str(url.database), os.W_OK) else " (not writable)"
        return ConfigError(f"store {where}: {reason}{hint}; check the path and its permissions")
    if "locked" in low:
        return UpstreamError(f"store {where}: another writer holds it for over {BUSY_TIMEOUT_S} s", retryable=True)
    if isinstance(error, OperationalError | InterfaceError):
        return UpstreamError(f"store {where}: {reason}; check that the server runs and the URL is right")
    return RunFailed(f"store {where}: {reason}")
