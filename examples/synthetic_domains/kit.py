"""What the ten domains are written with: short spellings of tables, tools and tasks, and a look at the rows.

    table("books", "What the library owns.", "id int; title text; kind text {loan|reference}; note text? ~")
    tool("get_book", "Look a book up.", "book_id int: Its number", get="SELECT * FROM books WHERE id = :book_id")

In a list of columns or parameters ``?`` means that it may be missing, ``~`` free text, ``{a|b}`` the values allowed
and ``-> table.column`` a reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

from firstchair.rollout.synthetic.domain import (
    Assertion,
    Cell,
    Column,
    Condition,
    Depth,
    Fact,
    GoldenCall,
    Info,
    Parameter,
    Table,
    TaskDraft,
    TaskTurn,
    ToolSpec,
)
from firstchair.rollout.synthetic.opened import OpenDomain

Rows = Mapping[str, Sequence[Sequence[Cell]]]

_TYPES: dict[str, Any] = {"int": "integer", "text": "text", "real": "real", "bool": "boolean"}
_SPELLED = re.compile(
    r"(?P<name>\w+) (?P<type>int|text|real|bool)(?P<optional>\?)?(?P<free> ~)?"
    r"(?: \{(?P<values>[^}]*)\})?(?: -> (?P<references>[\w.]+))?(?:: (?P<description>.*))?"
)

CANNOT = Info(
    any_of=("cannot", "can't", "can not", "unable", "not able", "not possible", "not allowed"), looked_up=False
)
"""A refusal has to say that it is one."""


@dataclass(frozen=True)
class Blueprint:
    """A whole domain before it is written."""

    name: str
    title: str
    description: str
    today: str
    rules: Sequence[str]
    tables: Sequence[Table]
    rows: Callable[[Random], Rows]
    tools: Sequence[ToolSpec]
    tasks: Callable[[World], None]


def _spelled(text: str) -> list[dict[str, Any]]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _SPELLED.fullmatch(part)
        if match is None:
            raise ValueError(f"cannot read {part!r}")
        fields: dict[str, Any] = {"name": match["name"], "type": _TYPES[match["type"]]}
        if match["description"]:
            fields["description"] = match["description"]
        if match["optional"]:
            fields["optional"] = True
        if match["free"]:
            fields["free"] = True
        if match["values"]:
            fields["values"] = tuple(match["values"].split("|"))
        if match["references"]:
            fields["references"] = match["references"]
        found.append(fields)
    return found


def table(name: str, description: str, columns: str, *, generated: bool = False) -> Table:
    """A table whose first column is its key."""
    made = tuple(Column(**fields) for fields in _spelled(columns))
    return Table(name=name, description=description, columns=made, key=(made[0].name,), generated=generated)


def tool(
    name: str,
    description: str,
    parameters: str = "",
    *,
    when: Sequence[tuple[str, str]] = (),
    do: Sequence[str] = (),
    get: str = "",
    none: str = "",
) -> ToolSpec:
    """A tool: ``when`` holds (else the error beside it), ``do`` this, give ``get`` back (``none``: when it is empty)."""
    return ToolSpec(
        name=name,
        description=description,
        parameters=tuple(Parameter(**fields) for fields in _spelled(parameters)),
        conditions=tuple(Condition(sql=sql, otherwise=otherwise) for sql, otherwise in when),
        writes=tuple(do),
        reads=get,
        empty=none,
    )


def call(tool_name: str, /, **arguments: Any) -> GoldenCall:
    """A golden call."""
    return GoldenCall(tool=tool_name, arguments=arguments)


def tells(*ways: Any, looked_up: bool = True) -> Info:
    """Something to say in one of these ways."""
    return Info(any_of=tuple(str(way) for way in ways), looked_up=looked_up)


def turn(
    user: str,
    calls: Sequence[GoldenCall],
    reply: str,
    tell: Sequence[Any] = (),
    facts: Sequence[tuple[Sequence[str], str]] = (),
) -> TaskTurn:
    """A turn. What ``tell`` lists are values that must have been looked up, or ``Info``."""
    return TaskTurn(
        user=user,
        calls=tuple(calls),
        reply=reply,
        convey=tuple(each if isinstance(each, Info) else tells(each) for each in tell),
        facts=tuple(Fact(topics=tuple(topics), says=says) for topics, says in facts),
    )


@dataclass
class World:
    """The domain's rows at the start, for whoever writes tasks over them."""

    opened: OpenDomain
    rng: Random
    written: list[TaskDraft] = field(default_factory=list)

    def every(self, sql: str) -> list[SimpleNamespace]:
        """The rows of a SELECT; columns are attributes."""
        database = self.opened.database()
        names, rows = database.select(sql, {"today": self.opened.domain.today}, max_rows=1000)
        database.close()
        return [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in rows]

    def some(self, count: int, sql: str) -> list[SimpleNamespace]:
        """``count`` of them, drawn."""
        found = self.every(sql)
        if len(found) < count:
            raise ValueError(f"{self.opened.domain.name}: {len(found)} rows, {count} wanted: {sql}")
        return self.rng.sample(found, count)

    def one(self, sql: str) -> SimpleNamespace:
        """The only row."""
        (found,) = self.every(sql)
        return found

    def add(self, depth: Depth, *turns: TaskTurn, holds: Sequence[tuple[str, str]] = ()) -> None:
        """Write a task down; ``holds`` are assertions: what is so, and the SELECT that then gives a row."""
        assertions = tuple(Assertion(says=says, sql=sql) for says, sql in holds)
        self.written.append(TaskDraft(depth=depth, turns=turns, assertions=assertions))


def day(today: str, days: int) -> str:
    """The date ``days`` after ``today``."""
    return (date.fromisoformat(today) + timedelta(days=days)).isoformat()


_FIRST = (
    "Ada Bela Carlo Dora Emil Fatima Goran Hana Ivo Jana Kofi Lena Marek Nadia Oskar Petra Quentin Rosa Sven Tala Umar "
    "Vera Wim Xenia Yusuf Zora Amir Brita Cyril Delia Eamon Freya Gita Hugo Ines Jonas Karim Ludo Mina Noor Otis Paula "
    "Rafael Selma Tomas Uma Viktor Wanda Yara Zeno"
).split()
_LAST = (
    "Abara Brandt Castro Dahl Eriksen Fontaine Gruber Haddad Ibsen Jansen Kowalski Lindgren Moreau Novak Okafor Petrov "
    "Quist Rossi Svensson Tanaka Ueda Varga Weber Xu Yilmaz Zeller Arnaud Bianchi Cohen Duarte Egger Falk Greco Holm "
    "Iversen Jovic Keller Lopez Meyer Nilsen Orlov Park Ramos Silva Toth Ulrich Vogel Wolff York Zander"
).split()


def people(rng: Random, count: int) -> list[str]:
    """Full names, no first and no last name twice."""
    first, last = rng.sample(_FIRST, count), rng.sample(_LAST, count)
    return [f"{one} {other}" for one, other in zip(first, last, strict=True)]
