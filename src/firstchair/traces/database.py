"""Connections of the trace store: SQLite with WAL by default, PostgreSQL by URL; driver errors become ours.

Writers take the whole store (``BEGIN IMMEDIATE``, an advisory lock on PostgreSQL), so "is this id here already"
and "insert it" cannot be parted by another writer. Readers never wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, NoSuchModuleError, OperationalError

from firstchair.core.errors import ConfigError, FirstchairError, RunFailed, UpstreamError

BUSY_TIMEOUT_S = 60
_PG_OPTIONS = ("application_name", "unix_sock")
"""What may follow ``?`` in the URL: of what the driver takes, that which is text."""
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
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise ConfigError(
            "store: not a database URL; expected sqlite:///path or postgresql://user@host:5432/db"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+pg8000")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(f"store: {parsed.get_backend_name()} is not supported; use sqlite or postgresql")
    if parsed.drivername == "postgresql+pg8000":
        _check_postgres(parsed)
    return parsed


def _check_postgres(url: URL) -> None:
    """Refuse what the driver would trip over."""
    if not url.username:
        raise ConfigError("store: found no user; expected postgresql://user@host/db")
    if url.port is not None and not 0 < url.port < 65536:
        raise ConfigError(f"store: found port {url.port}; expected 1 to 65535")
    unknown = [name for name in url.query if name not in _PG_OPTIONS]
    if unknown:
        raise ConfigError(
            f"store: {unknown[0]} is no option of a PostgreSQL URL here; leave it out "
            f"(there are {' and '.join(_PG_OPTIONS)})"
        )


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
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA cache_size = -32768")
    cursor.close()


def use_wal(engine: Engine) -> None:
    """Let readers of a new SQLite file never wait for its writer. The file remembers."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode = WAL"))
        engine.dispose()  # the next connection is a new one


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


class OpenDatabase:
    """An open database, as every store on one has it."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def close(self) -> None:
        """Give connections back."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    def reading(self) -> AbstractContextManager[Connection]:
        """One read transaction: a consistent view."""
        return reading(self._engine)

    def transaction(self) -> AbstractContextManager[Connection]:
        """One write transaction, the only one: committed when the block ends, undone when it raises."""
        return writing(self._engine)


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Driver errors as ours, without the password of the URL and without the rows that were being written."""
    try:
        yield
    except FirstchairError:
        raise
    except DBAPIError as error:
        raise _our_error(error, engine.url) from None


def _reason(error: DBAPIError) -> str:
    """One line. pg8000 hands over the server's fields by letter: ``M`` is the message, ``C`` the code."""
    if error.orig is None:
        return type(error).__name__
    fields = error.orig.args[0] if error.orig.args else None
    said = f"{fields.get('M')} ({fields.get('C')})" if isinstance(fields, dict) else str(error.orig)
    return (said.splitlines() or [type(error.orig).__name__])[0][:300]


def _our_error(error: DBAPIError, url: URL) -> FirstchairError:
    where = url.render_as_string(hide_password=True)
    reason = _reason(error)
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
