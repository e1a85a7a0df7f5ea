"""The database of one episode: SQLite in memory, in which statements that nobody trusts can do no harm.

    rows ─► build ─► image (bytes) ─► Database ─► select / write, each within limits
                        ▲                │
                        └──── image() ◄──┘        snapshot and restore

An authorizer allows what a statement needs and refuses the rest at its preparation: only the domain's own tables,
only functions that give the same answer every time, no ATTACH, PRAGMA, recursion or change of the schema. SQLite's
own limits bound its memory, a count of its instructions its time.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any

from firstchair.core.errors import DataError, RunFailed
from firstchair.rollout.synthetic.domain import Cell, Column, Table

MAX_INSTRUCTIONS = 500_000
"""Of SQLite's virtual machine, for one statement: a fraction of a second, and the same on every machine."""
MAX_SECONDS = 5.0
"""For one statement, in case an instruction takes long. Reaching it says nothing about the statement."""
_STRIDE = 1000

# fmt: off
FUNCTIONS = frozenset({
    "abs", "add_days", "avg", "coalesce", "count", "days_between", "group_concat", "ifnull", "iif", "instr",
    "last_insert_rowid", "length", "like", "lower", "ltrim", "max", "min", "nullif", "replace", "round",
    "rtrim", "substr", "substring", "sum", "total", "trim", "upper",
})
# fmt: on
"""What SQL may call; all of it says the same for the same rows, every time. ``add_days(date, n)`` and
``days_between(from, to)`` are ours; SQLite's own dates know the real today."""

_LIMITS: Mapping[int, int] = MappingProxyType(
    {
        sqlite3.SQLITE_LIMIT_LENGTH: 10_000,  # of a text and of a row: what a sort can pile up stays bounded
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
        sqlite3.SQLITE_LIMIT_COLUMN: 100,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
        sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
        sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
        sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }
)
_MAX_PAGES = 4096
"""Of 4 KiB each: 16 MiB."""


class _Mode(Enum):
    OWN = "own"
    """Statements of this module."""
    READ = "read"
    WRITE = "write"


# Beside the authorizer, which hears of a VACUUM only when it runs.
_FORMS = {
    _Mode.READ: (re.compile(r"\s*(select|with)\b", re.IGNORECASE), "a SELECT"),
    _Mode.WRITE: (re.compile(r"\s*(insert|update|delete)\b", re.IGNORECASE), "an INSERT, UPDATE or DELETE"),
}


class Refused(Exception):
    """A statement that cannot be carried out; the message says why, for whoever wrote or called it."""


class Database:
    """One episode's data. Not to be used by two threads at once."""

    def __init__(self, image: bytes, tables: Sequence[Table]):
        self._tables = frozenset(table.name for table in tables)
        self._mode, self._steps, self._deadline = _Mode.OWN, 0, 0.0
        # No cached statements: each is authorised anew, in the mode in which it is to run.
        self._connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        if image:
            self._connection.deserialize(image)
        for pragma in ("foreign_keys=ON", "temp_store=MEMORY", f"max_page_count={_MAX_PAGES}", "trusted_schema=OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.create_function("days_between", 2, _days_between, deterministic=True)
        self._connection.create_function("add_days", 2, _add_days, deterministic=True)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._over, _STRIDE)

    @classmethod
    def build(cls, tables: Sequence[Table], rows: Mapping[str, Sequence[Sequence[Cell]]]) -> Database:
        """Make the tables and fill them. Raises ``Refused`` naming the table and the row that does not fit."""
        made = cls(b"", tables)
        for table in tables:
            made._connection.execute(_create(table))  # what could be wrong with it, ``table_problems`` has said
        for table in tables:
            marks = ", ".join("?" * len(table.columns))
            for number, row in enumerate(rows.get(table.name, ())):
                try:
                    made._connection.execute(f'INSERT INTO "{table.name}" VALUES ({marks})', tuple(row))
                except (sqlite3.Error, OverflowError) as error:
                    made.close()
                    raise Refused(f"{table.name}: row {number} {list(row)}: {error}") from None
        return made

    def image(self) -> bytes:
        """Everything in it, for another ``Database``."""
        return self._connection.serialize()

    def close(self) -> None:
        """Free it."""
        self._connection.close()

    def select(
        self, sql: str, values: Mapping[str, Any], *, max_rows: int
    ) -> tuple[list[str], list[tuple[Cell, ...]]]:
        """The columns' names and at most ``max_rows`` rows. Raises ``Refused``."""
        with self._within(_Mode.READ, sql):
            cursor = self._connection.execute(sql, dict(values))
            found = cursor.fetchmany(max_rows)
            names = [column[0] for column in cursor.description or ()]
            cursor.close()
        return names, found

    def write(self, sql: str, values: Mapping[str, Any]) -> int:
        """How many rows an INSERT, UPDATE or DELETE touched. Raises ``Refused``; nothing of it is then kept."""
        with self._within(_Mode.WRITE, sql):
            cursor = self._connection.execute(sql, dict(values))
            count = cursor.rowcount
            cursor.close()
        return count

    def prepare(self, sql: str, names: Sequence[str], *, writing: bool = False) -> None:
        """Raise ``Refused`` when ``sql`` could never be run with values for ``names``."""
        with self._within(_Mode.WRITE if writing else _Mode.READ, sql):
            self._connection.execute(f"EXPLAIN {sql}", dict.fromkeys(names)).close()

    def everything(self, table: Table) -> list[tuple[Cell, ...]]:
        """All rows of a table, in no order that means anything."""
        return self._connection.execute(f'SELECT * FROM "{table.name}"').fetchall()

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What is written in the block is undone when it ends in an error."""
        self._connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            # A full database has undone the transaction by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _within(self, mode: _Mode, sql: str) -> Iterator[None]:
        form, expected = _FORMS[mode]
        if not form.match(sql):
            raise Refused(f"found {sql[:60]!r}; expected {expected}")
        self._mode, self._steps, self._deadline = mode, 0, time.monotonic() + MAX_SECONDS
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            if self._steps > MAX_INSTRUCTIONS:
                raise Refused("it takes too long") from None
            if time.monotonic() > self._deadline:
                raise RunFailed(f"a statement of a synthetic tool ran for {MAX_SECONDS:g} s") from None
            raise Refused(str(error)) from None
        finally:
            self._mode = _Mode.OWN

    def _over(self) -> int:
        if self._mode is _Mode.OWN:
            return 0
        self._steps += _STRIDE
        return int(self._steps > MAX_INSTRUCTIONS or time.monotonic() > self._deadline)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if self._mode is _Mode.OWN or self._allowed(action, first, second):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _allowed(self, action: int, first: str | None, second: str | None) -> bool:
        if action == sqlite3.SQLITE_SELECT:
            return True
        if action == sqlite3.SQLITE_FUNCTION:
            return (second or "").lower() in FUNCTIONS
        if action == sqlite3.SQLITE_READ:
            return first in self._tables
        changes = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
        return self._mode is _Mode.WRITE and action in changes and first in self._tables


def in_reference_order(tables: Sequence[Table]) -> list[Table]:
    """``tables`` so that none refers to a later one but to itself. Raises ``DataError`` when they go in circles."""
    left, ordered = list(tables), list[Table]()
    while left:
        waiting = {table.name for table in left}
        free = [table for table in left if not (_referred(table) - {table.name}) & waiting]
        if not free:
            names = ", ".join(sorted(waiting))
            raise DataError(f"the references of {names} go in circles; expected tables that can be filled in order")
        ordered += free
        left = [table for table in left if table not in free]
    return ordered


def _referred(table: Table) -> set[str]:
    return {column.references.partition(".")[0] for column in table.columns if column.references}


def _create(table: Table) -> str:
    lines = [_column(column) for column in table.columns]
    lines.append("PRIMARY KEY ({})".format(", ".join(f'"{name}"' for name in table.key)))
    for column in table.columns:
        if column.references:
            other, _, key = column.references.partition(".")
            lines.append(f'FOREIGN KEY ("{column.name}") REFERENCES "{other}" ("{key}")')
    return f'CREATE TABLE "{table.name}" ({", ".join(lines)}) STRICT'


def _column(column: Column) -> str:
    words = [f'"{column.name}"', column.type.upper()]
    if not column.optional:
        words.append("NOT NULL")
    if column.values:
        allowed = ", ".join("'{}'".format(value.replace("'", "''")) for value in column.values)
        words.append(f'CHECK ("{column.name}" IN ({allowed}))')
    return " ".join(words)


def _days_between(start: Any, end: Any) -> int | None:
    try:
        return (date.fromisoformat(end) - date.fromisoformat(start)).days
    except (TypeError, ValueError):
        return None


def _add_days(start: Any, days: Any) -> str | None:
    try:
        return (date.fromisoformat(start) + timedelta(days=days)).isoformat()
    except (TypeError, ValueError, OverflowError):
        return None
