"""``db_query``: one SQL statement on one database, read-only unless it is said otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.engines.http_engine import key_from
from firstchair.tools.base import object_schema
from firstchair.tools.db_postgres import PostgresDatabase
from firstchair.tools.db_rows import Database, Limits, Rows
from firstchair.tools.db_sqlite import SqliteDatabase

MAX_SQL_CHARS = 20_000
_TABLES = {"SQLite": "sqlite_master", "PostgreSQL": "information_schema.tables"}


class DbQuerySpec(Strict):
    """Which database, and how much of it."""

    type: Literal["db_query"] = "db_query"
    url: str
    """``sqlite:///path`` or ``postgresql://user@host:5432/database``; no password in it."""
    password_env: str = ""
    """Environment variable that holds the password."""
    read_only: bool = True
    """``false`` lets a model insert, update, delete, create and drop."""
    max_rows: int = Field(default=100, ge=1)
    timeout_s: float = Field(default=10.0, gt=0)


class DbQuery:
    """The tool. The database keeps the time: a thread cannot be stopped from here."""

    timeout_s: float | None = None

    def __init__(self, spec: DbQuerySpec, database: Database):
        self._spec, self._database = spec, database
        what = "One SQL query" if spec.read_only else "One SQL statement"
        self.tool = Tool(
            name="db_query",
            description=f"{what} on a {database.dialect} database; gives up to {spec.max_rows} rows, a JSON object a "
            f"line. What tables there are: {_TABLES[database.dialect]}.",
            parameters=object_schema(
                {"sql": {"type": "string", "minLength": 1, "maxLength": MAX_SQL_CHARS}}, required=("sql",)
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The rows."""
        limits = Limits(self._spec.max_rows, self._spec.timeout_s)
        return _text(await asyncio.to_thread(self._database.query, arguments["sql"], limits))

    async def close(self) -> None:
        """Nothing is held."""


def _text(rows: Rows) -> str:
    if rows.changed is not None:
        return f"{rows.changed:,} rows changed"
    more = f"\n[the first {len(rows.lines):,} rows; there are more]" if rows.has_more else ""
    return "\n".join(rows.lines) + more if rows.lines else "no rows"


def open_database(spec: DbQuerySpec) -> Database:
    """The database that ``spec`` names; no connection is made yet to a server. Raises ``ConfigError``."""
    try:
        url = make_url(spec.url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "db_query.url: not a database URL; expected sqlite:///path or postgresql://user@host:5432/database"
        ) from None
    if url.query:
        raise ConfigError("db_query.url: found options after '?'; leave them out, there are none")
    if url.password is not None:
        raise ConfigError("db_query.url: found a password in it; name its variable in password_env")
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database:
        return SqliteDatabase(Path(url.database), read_only=spec.read_only)
    if backend != "postgresql" or not url.username or not 0 < (url.port or 5432) < 65_536:
        raise ConfigError("db_query.url: expected sqlite:///path or postgresql://user@host:5432/database")
    password = key_from(spec.password_env, field="db_query.password_env") if spec.password_env else None
    return PostgresDatabase(url, password=password, read_only=spec.read_only)
