"""PostgreSQL for ``db_query``: a read-only transaction, a cursor, a time limit; the server enforces all three.

A read-only transaction alone would not do: text with several statements could end it (``COMMIT; DROP …``). So the
statement is sent by the extended protocol, which takes one only, and inside of ``DECLARE … CURSOR FOR``, which takes
a query only and lets the rows be fetched up to a number. A superuser's functions write files whatever the
transaction says, and a query can take on any role that its own is a member of (``set_config('role', …)``), so a role
that is a superuser, may become one, or may run programs or write files on the server is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy.engine import URL

from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.db_rows import MAX_ROW_CHARS, Limits, Rows, cut_line, row_line

CONNECT_S = 10.0
_QUERIES = ("select", "values", "table")
_POWERFUL = """
SELECT min(rolname) FROM pg_roles WHERE pg_has_role(current_user, oid, 'MEMBER')
AND (rolsuper OR rolname IN ('pg_execute_server_program', 'pg_write_server_files'))
"""
# A statement that catches its own cancellation would go on for ever after we have left (PostgreSQL 14 and newer).
_END_WITH_US = """
SELECT set_config(name, '1000', true) FROM pg_settings WHERE name = 'client_connection_check_interval'
"""
_REFUSED = frozenset({"25006", "42501"})  # read_only_sql_transaction, insufficient_privilege
_TIMED_OUT = "57014"
_SYNTAX = "42601"
_PROTOCOL = "08P01"
"""What there is to it for a statement with $1 or NUL; we speak the protocol right."""
_BROKEN_CLASSES = frozenset({"08", "28", "3D", "53", "57", "58", "XX"})
"""Connection, login, no such database, resources, shutdown, system, internal."""


class PostgresDatabase:
    """A PostgreSQL database. Raises ``ConfigError`` when the driver is missing."""

    dialect = "PostgreSQL"

    def __init__(self, url: URL, *, password: str | None, read_only: bool):
        try:
            from firstchair.tools.postgres_connection import BoundedConnection
        except ImportError:
            raise ConfigError(
                "db_query.url: pg8000: not installed; run: pip install 'firstchair[postgres]'"
            ) from None
        self._connection_class = BoundedConnection
        self._read_only, self._where = read_only, f"{url.host}/{url.database}"
        self._login = {
            "user": url.username,
            "host": url.host or "localhost",
            "port": url.port or 5432,
            "database": url.database,
            "password": password,
            "application_name": "firstchair",
            # Else it would be the database's own, which may be none that texts can be read in.
            "startup_params": {"client_encoding": "UTF8"},
        }

    def query(self, sql: str, limits: Limits) -> Rows:
        """Run one statement."""
        sql = sql.strip().rstrip(";")
        as_query = self._read_only or sql.lower().startswith(_QUERIES)
        with self._failures(limits, as_query), contextlib.closing(self._connect(limits)) as connection:
            connection.run("BEGIN READ ONLY" if self._read_only else "BEGIN")
            connection.run(f"SET LOCAL statement_timeout = {max(1, round(limits.seconds * 1000))}")
            # A query before the statement: from now on the transaction cannot be made one that writes.
            ((powerful,),) = connection.run(_POWERFUL)
            if powerful is not None:
                raise ConfigError(
                    f"db_query.url: {self._login['user']!r} is or may become {powerful!r}, a superuser or one that "
                    "writes files on the server, whom no read-only transaction stops; use a role that may only do "
                    "what a model may"
                )
            connection.run(_END_WITH_US)
            rows = self._rows(connection, sql, limits) if as_query else _changes(connection, sql, limits)
            if not self._read_only:
                connection.run("COMMIT")
            return rows

    def _rows(self, connection: Any, sql: str, limits: Limits) -> Rows:
        # The server cuts each row, so that a value of a gigabyte does not come here. The line break ends a comment.
        connection.execute_unnamed(
            f"DECLARE found NO SCROLL CURSOR FOR SELECT left(row_to_json(q)::text, {MAX_ROW_CHARS + 1}) "
            f"FROM (\n{sql}\n) AS q"
        )
        found = connection.run(f"FETCH {limits.rows + 1} FROM found")
        return Rows(tuple(cut_line(text) for (text,) in found[: limits.rows]), has_more=len(found) > limits.rows)

    def _connect(self, limits: Limits) -> Any:
        # A server that hangs is given up a little after it should have given up itself.
        timeout_s = max(CONNECT_S, limits.seconds + 5)
        return self._connection_class(**self._login, max_rows=limits.rows + 1, timeout=timeout_s)

    @contextlib.contextmanager
    def _failures(self, limits: Limits, as_query: bool) -> Iterator[None]:
        from pg8000.exceptions import DatabaseError, Error

        try:
            yield
        except DatabaseError as error:
            fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
            raise self._told(fields, limits, as_query) from error
        except (UnicodeError, LookupError) as error:
            raise ToolFailed(
                Failure.FAILED,
                f"the text is not UTF-8: {error}; leave client_encoding as it is, or select other columns",
            ) from error
        except (Error, OSError) as error:
            raise UpstreamError(f"PostgreSQL at {self._where}: {error}", retryable=True) from error

    def _told(self, fields: dict[str, str], limits: Limits, as_query: bool) -> Exception:
        """A server's error (its fields by letter: ``C`` code, ``M`` message, ``H`` hint) as ours."""
        code, message = fields.get("C", ""), fields.get("M", "unknown error")
        if code == _TIMED_OUT:
            return ToolFailed(
                Failure.TIMEOUT, f"the query was stopped after {limits.seconds:g} s; ask for less at once"
            )
        if code == _PROTOCOL:
            return ToolFailed(Failure.FAILED, f"{message}; write values into the statement, without NUL characters")
        if code[:2] in _BROKEN_CLASSES or not code:
            return UpstreamError(
                f"PostgreSQL at {self._where}: {message} ({code})", retryable=code[:2] in ("53", "57")
            )
        if code in _REFUSED:
            return ToolFailed(Failure.REFUSED, message)
        hint = fields.get("H") or "correct the statement"
        if code == _SYNTAX and as_query:
            hint = "one query is expected: SELECT, VALUES, TABLE or WITH … SELECT"
        return ToolFailed(Failure.FAILED, f"{message}; {hint}")


def _changes(connection: Any, sql: str, limits: Limits) -> Rows:
    done = connection.execute_unnamed(sql)
    if not done.columns:
        return Rows((), changed=max(0, done.row_count))
    columns, found = [column["name"] for column in done.columns], done.rows
    lines = tuple(row_line(columns, row) for row in found[: limits.rows])
    return Rows(lines, has_more=len(found) > limits.rows)
