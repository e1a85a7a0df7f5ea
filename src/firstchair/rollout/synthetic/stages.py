"""What an author is asked for, stage by stage: tables, their rows, tools, tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from firstchair.chat.messages import Message, text_message
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import dumps
from firstchair.rollout.synthetic.author import Stage
from firstchair.rollout.synthetic.database import FUNCTIONS
from firstchair.rollout.synthetic.domain import (
    NAME,
    Cell,
    Domain,
    Record,
    Table,
    TaskDraft,
    Text,
    ToolSpec,
    named_task,
)
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.problems import (
    Fault,
    date_problems,
    row_problems,
    table_problems,
    task_problems,
    tool_problems,
)

ROWS = (20, 60)
"""Fewest and most rows of a table."""
TABLES = (3, 8)
TOOLS = (8, 15)
_SAMPLE = 8
"""Rows of each table that the authors of tools and of other rows are shown."""

_SYSTEM = (
    "You design small simulated businesses in which assistants with tools are trained and tested. You "
    "answer with one "
    "JSON value of the schema you are given and with nothing else: no comments, no fences, no words around it."
)


@dataclass(frozen=True)
class Brief:
    """What a domain is to be about."""

    name: str
    description: str
    tasks: int = 24
    """To be written; fewer are left after the filters."""
    batch: int = 6
    """Tasks of one request."""


def brief_of(name: str, description: str, *, tasks: int, batch: int) -> Brief:
    """A brief from a command line. Raises ``ConfigError``."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r}: expected a lower-case letter, then letters, digits and underscores, 40 at most"
        )
    if not description.strip():
        raise ConfigError("--description: found nothing; expected what the business is and does")
    return Brief(name, description.strip(), tasks=tasks, batch=batch)


class TablesDraft(Record, frozen=True, kw_only=True):
    """What the first stage gives."""

    title: Text
    today: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    rules: Annotated[tuple[Text, ...], Meta(min_length=1)]
    tables: tuple[Table, ...]


class RowsDraft(Record, frozen=True, kw_only=True):
    """The rows of one table."""

    rows: tuple[tuple[Cell, ...], ...]


class ToolsDraft(Record, frozen=True, kw_only=True):
    """All tools."""

    tools: tuple[ToolSpec, ...]


class TasksDraft(Record, frozen=True, kw_only=True):
    """A batch of tasks."""

    tasks: tuple[TaskDraft, ...]


def tables_stage(brief: Brief) -> Stage[TablesDraft]:
    """Title, date, rules and tables of a domain."""
    ask = (
        f"The business: {brief.description}\n\n"
        "Write its title (as in 'the assistant of {title}'), the date on which everything takes place, the rules"
        " that its assistant must keep to (three to eight; some forbid what customers will ask for), and "
        f"{TABLES[0]} to {TABLES[1]} SQLite tables. A reference names table.column, the only key of its table. Set "
        "`generated` where the assistant's tools add rows and the integer key is counted up. Set `free` on columns"
        " of free text. Keep dates as text, YYYY-MM-DD, and money as whole numbers."
    )

    def check(draft: TablesDraft) -> list[str]:
        found = [*date_problems(draft.today), *table_problems(draft.tables)]
        return _texts([*found, *_count("tables", draft.tables, TABLES)])

    return Stage("tables", _asked(ask), TablesDraft, check)


def rows_stage(
    brief: Brief, draft: TablesDraft, table: Table, earlier: Mapping[str, Sequence[Sequence[Cell]]]
) -> Stage[RowsDraft]:
    """The rows of ``table``; those that it refers to are in ``earlier``."""
    low, high = ROWS
    ask = (
        f"The business: {brief.description}\nToday: {draft.today}\nRules:\n{_listed(draft.rules)}\n"
        f"Its tables: {_json(draft.tables)}\n\nRows that are there already: {dumps(_plain(earlier))}\n\n"
        f"Write {low} to {high} rows of the table {table.name}, each a list of values in the order of its columns. "
        "Let them differ in everything that the rules speak of, so that some wishes are allowed and others are "
        "not."
    )
    known = [other for other in draft.tables if other.name in earlier or other.name == table.name]

    def check(rows: RowsDraft) -> list[str]:
        faults = row_problems(known, {**earlier, table.name: rows.rows}, least=0, most=1_000_000)
        return _texts([*faults, *_count(f"rows of {table.name}", rows.rows, ROWS)])

    return Stage(f"rows {table.name}", _asked(ask), RowsDraft, check)


def tools_stage(brief: Brief, draft: TablesDraft, rows: Mapping[str, Sequence[Sequence[Cell]]]) -> Stage[ToolsDraft]:
    """The tools over the tables."""
    ask = (
        f"The business: {brief.description}\nRules:\n{_listed(draft.rules)}\nTables: {_json(draft.tables)}\n"
        f"Some of their rows: {dumps(_sample(rows))}\n\n"
        f"Write {TOOLS[0]} to {TOOLS[1]} tools for its assistant. A tool is declared in SQLite's SQL, with its "
        "parameters as :name and today's date as :today. `conditions` are SELECTs that must give a row, each with "
        "the error that is told otherwise ({parameter} stands for an argument); `writes` are INSERT, UPDATE or "
        "DELETE statements; `reads` is the SELECT whose rows are given back, `empty` the error when there are "
        "none. Some tools only look up, some search, some change. Leave some rules to the assistant's judgement "
        "rather than to conditions. Functions: "
        f"{', '.join(sorted(FUNCTIONS))}; "
        "add_days(date, days) and days_between(from, to) replace SQLite's own dates. No PRAGMA, no recursion, no "
        "other tables."
    )

    def check(tools: ToolsDraft) -> list[str]:
        return _texts([*tool_problems(draft.tables, tools.tools), *_count("tools", tools.tools, TOOLS)])

    return Stage("tools", _asked(ask), ToolsDraft, check)


def tasks_stage(
    domain: Domain, opened: OpenDomain, earlier: Sequence[TaskDraft], number: int, count: int
) -> Stage[TasksDraft]:
    """A batch of ``count`` tasks; ``earlier`` ones are not to be written again."""
    ask = (
        f"The business: {domain.description}\nToday: {domain.today}\nRules:\n{_listed(domain.rules)}\n"
        f"Tables: {_json(domain.tables)}\nAll rows: {dumps(_plain(domain.rows))}\nTools: {_json(domain.tools)}\n\n"
        f"Write {count} tasks, of depths read, write, multi and refusal in turn. In each turn the user says what "
        "they want in their own words, without naming tools, and without what `facts` hold, which they tell when "
        "asked (by a question with one of the topics in it). `calls` are the right calls in order, with the "
        "arguments that the rows above make right; `reply` is what a good assistant then says; `convey` is what it"
        " must say (exact values from the results; set looked_up to false for words of the assistant's own, such "
        "as cannot or unable). A refusal only looks up and says why not. Assertions are SELECTs that give a row "
        "after the calls and not before.\n"
        f"These exist already: {dumps([task.turns[0].user for task in earlier])}"
    )

    def check(tasks: TasksDraft) -> list[str]:
        return [
            f"task {index}: {fault}"
            for index, task in enumerate(tasks.tasks)
            for fault in task_problems(opened, named_task(domain.name, task))
        ]

    return Stage(f"tasks {number}", _asked(ask), TasksDraft, check, tolerant=True)


def _asked(ask: str) -> tuple[Message, ...]:
    return (text_message("system", _SYSTEM), text_message("user", ask))


def _listed(rules: Sequence[str]) -> str:
    return "\n".join(f"- {rule}" for rule in rules)


def _json(value: Any) -> str:
    return dumps(msgspec.to_builtins(value))


def _plain(rows: Mapping[str, Sequence[Sequence[Cell]]]) -> dict[str, list[list[Cell]]]:
    return {name: [list(row) for row in some] for name, some in rows.items()}


def _sample(rows: Mapping[str, Sequence[Sequence[Cell]]]) -> dict[str, list[list[Cell]]]:
    return {name: some[:_SAMPLE] for name, some in _plain(rows).items()}


def _count(what: str, found: Sequence[Any], bounds: tuple[int, int]) -> list[Fault]:
    if bounds[0] <= len(found) <= bounds[1]:
        return []
    return [Fault("count", what, f"found {len(found)}; expected {bounds[0]} to {bounds[1]}")]


def _texts(faults: Sequence[Fault]) -> list[str]:
    return [str(fault) for fault in faults]
