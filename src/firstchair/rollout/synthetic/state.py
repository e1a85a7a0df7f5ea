"""What a database holds, in a form in which two ways to the same end are equal.

Rows are a multiset: their order means nothing. The number that the database gave to a new row says only in which
order things were done; it stands for the row's content, wherever else it is referred to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from firstchair.core.jsontext import content_id
from firstchair.rollout.synthetic.database import Database
from firstchair.rollout.synthetic.domain import Cell, Column, Table

State = Mapping[str, Counter[tuple[Any, ...]]]
"""Table → its rows, each with how often it stands there."""

_DIGITS = 6
"""Decimals to which real numbers are compared."""


def start_keys(tables: Sequence[Table], rows: Mapping[str, Sequence[Sequence[Cell]]]) -> dict[str, frozenset[Cell]]:
    """Table → the keys of its rows at the start, of tables whose keys are generated."""
    found: dict[str, frozenset[Cell]] = {}
    for table in tables:
        if table.generated:
            position = [column.name for column in table.columns].index(table.key[0])
            found[table.name] = frozenset(row[position] for row in rows.get(table.name, ()))
    return found


def state_of(database: Database, tables: Sequence[Table], keys: Mapping[str, frozenset[Cell]]) -> State:
    """What ``database`` holds. ``tables`` are in an order in which none refers to a later one."""
    names: dict[tuple[str, Cell], str] = {}
    return {
        table.name: _rows_of(database, table, keys, names)
        if any(_is_special(column, keys) for column in table.columns) or table.generated
        else Counter(database.everything(table))
        for table in tables
    }


def _is_special(column: Column, keys: Mapping[str, frozenset[Cell]]) -> bool:
    """Whether two different values of it can be equal."""
    return column.free or column.type == "real" or column.references.partition(".")[0] in keys


def _rows_of(
    database: Database, table: Table, keys: Mapping[str, frozenset[Cell]], names: dict[tuple[str, Cell], str]
) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    special = [(index, column) for index, column in enumerate(table.columns) if _is_special(column, keys)]
    position = [column.name for column in table.columns].index(table.key[0])
    for row in database.everything(table):
        plain = list(row)
        for index, column in special:
            plain[index] = _compared(column, row[index], names)
        number = row[position]
        if table.generated and number not in keys[table.name]:
            plain[position] = "new"
            names[table.name, number] = f"new {table.name} {content_id(plain)[:12]}"
        found[tuple(plain)] += 1
    return found


def _compared(column: Column, cell: Cell, names: Mapping[tuple[str, Cell], str]) -> Any:
    if column.references and cell is not None:
        return names.get((column.references.partition(".")[0], cell), cell)
    if column.free:
        return cell is not None
    return round(cell, _DIGITS) if isinstance(cell, float) else cell


def differences(wanted: State, found: State) -> list[str]:
    """What ``found`` has too much and too little, table by table; empty when they are equal."""
    out: list[str] = []
    for table, rows in wanted.items():
        if rows == found[table]:
            continue
        out += [f"{table}: missing {list(row)}" for row in (rows - found[table])]
        out += [f"{table}: unexpected {list(row)}" for row in (found[table] - rows)]
    return out
