"""What is wrong with a domain or a task, as a list: for the author's one repair, and for a drop with its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal

from firstchair.core.errors import DataError
from firstchair.rollout.synthetic.database import Database, Refused, in_reference_order
from firstchair.rollout.synthetic.domain import (
    Cell,
    Domain,
    SyntheticTask,
    Table,
    TaskTurn,
    ToolSpec,
)
from firstchair.rollout.synthetic.spoken import asks, conveyed

if TYPE_CHECKING:
    from firstchair.rollout.synthetic.opened import OpenDomain

Kind = Literal[
    "name",  # two of one name, or a name that is not there
    "key",
    "reference",
    "date",
    "rows",  # rows that do not fit their table, too few, too many
    "sql",  # a statement that cannot be run
    "parameter",
    "result",  # a tool that gives nothing back
    "count",
    "depth",  # the calls are not what the task's depth says
    "golden",  # a golden call fails
    "facts",
    "reply",
    "convey",
    "assertion",
]

MULTI_CALLS = 3
"""Calls that a ``multi`` task has at least."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    kind: Kind
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.detail}"


def table_problems(tables: Sequence[Table]) -> list[Fault]:
    """What is wrong with tables before there are rows."""
    found = list(_twice("tables", (table.name for table in tables)))
    known = {table.name: table for table in tables}
    for table in tables:
        found += _one_table(table, known)
    if not found:
        try:
            in_reference_order(tables)
        except DataError as error:
            found.append(Fault("reference", "tables", str(error)))
    return found


def _one_table(table: Table, known: Mapping[str, Table]) -> Iterator[Fault]:
    columns = {column.name: column for column in table.columns}
    yield from _twice(f"table {table.name}", (column.name for column in table.columns))
    if table.name.startswith("sqlite"):
        yield Fault("name", f"table {table.name}", "names that begin with sqlite are SQLite's own")
    for name in table.key:
        if name not in columns:
            yield Fault("key", f"table {table.name}", f"key {name} is no column of it")
    if table.generated and (len(table.key) != 1 or columns.get(table.key[0], table.columns[0]).type != "integer"):
        yield Fault("key", f"table {table.name}", "a generated key is one integer column")
    for column in table.columns:
        where = f"table {table.name}, column {column.name}"
        if column.values and column.type != "text":
            yield Fault("name", where, "values are for columns of type text")
        if column.references:
            other, _, key = column.references.partition(".")
            if other not in known or known[other].key != (key,):
                yield Fault("reference", where, f"found {column.references!r}; expected table.column, its only key")


def row_problems(
    tables: Sequence[Table], rows: Mapping[str, Sequence[Sequence[Cell]]], *, least: int, most: int
) -> list[Fault]:
    """What is wrong with ``rows`` of ``tables``, in which none refers to a table outside."""
    found: list[Fault] = []
    for table in tables:
        mine = rows.get(table.name, ())
        if not least <= len(mine) <= most:
            found.append(Fault("rows", table.name, f"{len(mine)} rows; expected {least} to {most}"))
        wrong = [number for number, row in enumerate(mine) if len(row) != len(table.columns)]
        if wrong:
            found.append(Fault("rows", table.name, f"rows {wrong[:5]} have not {len(table.columns)} values"))
    found += [Fault("name", name, "no such table") for name in rows.keys() - {table.name for table in tables}]
    if not found:
        try:
            Database.build(in_reference_order(tables), rows).close()
        except Refused as error:
            found.append(Fault("rows", "rows", str(error)))
    return found


def tool_problems(tables: Sequence[Table], tools: Sequence[ToolSpec]) -> list[Fault]:
    """What is wrong with tools over ``tables``: every statement is prepared, none is run."""
    found = list(_twice("tools", (tool.name for tool in tools)))
    database = Database.build(in_reference_order(tables), {})
    for tool in tools:
        found += _one_tool(tool, database)
    database.close()
    return found


def _one_tool(tool: ToolSpec, database: Database) -> Iterator[Fault]:
    where = f"tool {tool.name}"
    names = [parameter.name for parameter in tool.parameters]
    yield from _twice(where, [*names, "today"])
    selects = [condition.sql for condition in tool.conditions] + ([tool.reads] if tool.reads else [])
    for sql in selects:
        yield from _statement(where, sql, database, names)
    for sql in tool.writes:
        yield from _statement(where, sql, database, names, writing=True)
    if not tool.reads and not tool.writes:
        yield Fault("result", where, "it neither reads nor writes")
    everything = "\n".join((*selects, *tool.writes))
    for parameter in tool.parameters:
        if not re.search(rf":{parameter.name}\b", everything):
            yield Fault("parameter", where, f"parameter {parameter.name} is used by no statement")
        if parameter.values and parameter.type != "text":
            yield Fault("parameter", where, f"parameter {parameter.name}: values are for type text")
    for text in (*(condition.otherwise for condition in tool.conditions), tool.empty):
        for name in re.findall(r"{(\w+)}", text):
            if name not in names:
                yield Fault("parameter", where, f"{text!r} names {{{name}}}, which is no parameter")


def _statement(
    where: str, sql: str, database: Database, names: Sequence[str], *, writing: bool = False
) -> Iterator[Fault]:
    try:
        database.prepare(sql, [*names, "today"], writing=writing)
    except Refused as error:
        yield Fault("sql", where, f"{sql[:80]!r}: {error}")


def task_problems(opened: OpenDomain, task: SyntheticTask) -> list[Fault]:
    """What is wrong with a task, its golden calls carried out included."""
    found = [
        Fault("name", f"turn {number}", f"no tool {call.tool}")
        for number, turn in enumerate(task.turns)
        for call in turn.calls
        if call.tool not in opened.specs
    ]
    if found:
        return found
    found += _depth(opened, task)
    for number, turn in enumerate(task.turns):
        found += _facts(f"turn {number}", turn)
    return [*found, *_played(opened, task)]


def _depth(opened: OpenDomain, task: SyntheticTask) -> Iterator[Fault]:
    calls = [call for turn in task.turns for call in turn.calls]
    writes = sum(bool(opened.specs[call.tool].writes) for call in calls)
    reads = len(calls) - writes
    fits = {
        "read": reads >= 1 and not writes,
        "refusal": reads >= 1 and not writes,
        "write": writes == 1,
        "multi": len(calls) >= MULTI_CALLS and writes >= 1 and reads >= 1,
    }
    if not fits[task.depth]:
        yield Fault("depth", "task", f"{task.depth} with {reads} calls that read and {writes} that write")
    if not writes and not any(info.looked_up for turn in task.turns for info in turn.convey):
        yield Fault("convey", "task", "it changes nothing and tells nothing that must be looked up")


def _facts(where: str, turn: TaskTurn) -> Iterator[Fault]:
    for number, fact in enumerate(turn.facts):
        wanting = [index for index, other in enumerate(turn.facts) if asks(f"{fact.topics[0]}?", other)]
        if wanting != [number]:
            yield Fault("facts", where, f"a question about {fact.topics[0]!r} asks for facts {wanting}, not {number}")
    if "?" in turn.reply:
        yield Fault("reply", where, "the reply asks something; the one given here ends the turn")
    for info in turn.convey:
        if not conveyed(turn.reply, info):
            yield Fault("convey", where, f"the reply says none of {list(info.any_of)}")
        if conveyed(turn.user, info):
            yield Fault("convey", where, f"the user says one of {list(info.any_of)} already")


def _played(opened: OpenDomain, task: SyntheticTask) -> Iterator[Fault]:
    """The golden calls carried out, and the assertions before and after."""
    database = opened.database()
    try:
        before = [_holds(database, each.sql) for each in task.assertions]
        for number, (call, answer) in enumerate(opened.golden(database, task)):
            if answer.is_error:
                yield Fault("golden", f"call {number} {call.tool}", answer.text)
        for number, each in enumerate(task.assertions):
            after = _holds(database, each.sql)
            if after is not True:
                yield Fault("assertion", f"assertion {number}", after or "it does not hold after the golden calls")
        if before and all(each is True for each in before):
            yield Fault("assertion", "task", "all assertions hold before anything is done")
    finally:
        database.close()


def _holds(database: Database, sql: str) -> bool | str:
    """Whether an assertion holds, or why it cannot be told."""
    try:
        return bool(database.select(sql, {}, max_rows=1)[1])
    except Refused as error:
        return f"{sql[:80]!r}: {error}"


def domain_problems(domain: Domain, *, least: int = 1, most: int = 10_000) -> list[Fault]:
    """What is wrong with a whole domain, its tasks apart; ``least`` and ``most`` rows a table."""
    found = date_problems(domain.today) + table_problems(domain.tables)
    if found:
        return found
    return row_problems(domain.tables, domain.rows, least=least, most=most) + tool_problems(
        domain.tables, domain.tools
    )


def date_problems(today: str) -> list[Fault]:
    """Whether ``today`` is a day of the calendar."""
    try:
        date.fromisoformat(today)
    except ValueError as error:
        return [Fault("date", "today", str(error))]
    return []


def _twice(where: str, names: Iterable[str]) -> Iterator[Fault]:
    for name, count in Counter(names).items():
        if count > 1:
            yield Fault("name", where, f"{name} stands there {count} times")
