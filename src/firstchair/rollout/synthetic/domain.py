"""A synthetic domain as data: tables, rows, tools written as SQL, and tasks with the calls that solve them.

    description ─► Table… ─► rows ─► ToolSpec… ─► SyntheticTask…        one JSON file: ``Domain``

Nothing here is a program. A tool is a list of SQL statements with named parameters; ``database.Database`` runs them
under an authorizer and limits, and no statement can reach anything but the domain's own tables.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firstchair.core.errors import DataError
from firstchair.core.jsontext import JsonProblem, content_id, dumps, loads

NAME = re.compile(r"^[a-z][a-z0-9_]{0,39}$")
Name = Annotated[str, Meta(pattern=NAME.pattern)]
"""Of a domain, table, column, tool or parameter; goes into SQL as an identifier."""

Text = Annotated[str, Meta(min_length=1, max_length=4000)]
Cell = str | int | float | None
"""A value in a table."""

Depth = Literal["read", "write", "multi", "refusal"]
"""What a task takes: look something up; one change; several calls that build on each other, a change among them; or
to see that the rules forbid what is asked, and to say so."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Frozen; unknown fields are errors; fields that hold their default are left out of JSON."""


class Column(Record, frozen=True, kw_only=True):
    """A column of a table."""

    name: Name
    type: Literal["text", "integer", "real"]
    description: str = ""
    optional: bool = False
    """May be null."""
    references: str = ""
    """``table.column`` that each value must occur in; that column is the whole key of its table."""
    values: tuple[str, ...] = ()
    """The only texts allowed; empty allows all."""
    free: bool = False
    """Holds words that differ from one writer to the next (a note): that something stands there is compared, what is
    not."""


class Table(Record, frozen=True, kw_only=True):
    """A table."""

    name: Name
    description: str = ""
    columns: Annotated[tuple[Column, ...], Meta(min_length=1)]
    key: Annotated[tuple[Name, ...], Meta(min_length=1)]
    generated: bool = False
    """The key is one integer that the database counts up for new rows. Which number a new row got says only in which
    order things were done, so it is not compared."""


class Parameter(Record, frozen=True, kw_only=True):
    """An argument of a tool; ``:name`` in its SQL."""

    name: Name
    type: Literal["text", "integer", "real", "boolean"]
    description: str = ""
    optional: bool = False
    """May be left out; ``:name`` is then null."""
    values: tuple[str, ...] = ()
    """The only texts allowed; empty allows all."""


class Condition(Record, frozen=True, kw_only=True):
    """What must hold before a tool does anything."""

    sql: Text
    """A SELECT; the condition holds when it gives a row."""
    otherwise: Text
    """The error that the caller reads; ``{parameter}`` stands for an argument."""


class ToolSpec(Record, frozen=True, kw_only=True):
    """A tool: conditions, then writes, then what it gives back, all or nothing. ``:today`` is the domain's date."""

    name: Name
    description: Text
    parameters: tuple[Parameter, ...] = ()
    conditions: tuple[Condition, ...] = ()
    writes: tuple[Text, ...] = ()
    """INSERT, UPDATE or DELETE statements."""
    reads: str = ""
    """A SELECT, after the writes; its rows are the result. Empty only where there are writes."""
    empty: str = ""
    """The error when ``reads`` gives no row; without it the result is then an empty list."""


class Fact(Record, frozen=True, kw_only=True):
    """Something that the user tells only when asked."""

    topics: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """A question that has one of these words in it asks for this."""
    says: Text


class GoldenCall(Record, frozen=True, kw_only=True):
    """One right call."""

    tool: Name
    arguments: dict[str, str | int | float | bool | None] = {}


class Info(Record, frozen=True, kw_only=True):
    """Something that the reply of a turn must tell the user."""

    any_of: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Ways to say it, one of which is enough; numbers and dates are also found in other spellings."""
    looked_up: bool = True
    """It must have stood in the result of a call before: known, not guessed."""


class TaskTurn(Record, frozen=True, kw_only=True):
    """One wish of the user's, and how it is met."""

    user: Text
    facts: tuple[Fact, ...] = ()
    calls: tuple[GoldenCall, ...] = ()
    """Right calls in order. Others may do as well: what counts is the state that they leave."""
    reply: Text
    """What a good assistant then says."""
    convey: tuple[Info, ...] = ()


class Assertion(Record, frozen=True, kw_only=True):
    """Something that must hold at the end."""

    says: Text
    sql: Text
    """A SELECT that then gives a row."""


class TaskDraft(Record, frozen=True, kw_only=True):
    """A task as an author writes it."""

    depth: Depth
    turns: Annotated[tuple[TaskTurn, ...], Meta(min_length=1)]
    assertions: tuple[Assertion, ...] = ()


class SyntheticTask(TaskDraft, frozen=True, kw_only=True):
    """A task with its name."""

    task_id: str
    """The domain's name and a hash of what the task says."""
    domain: Name

    @property
    def rows(self) -> tuple[str, ...]:
        """What a reward can be routed by (``when: {rows: refusal}``): the depth and the domain."""
        return (self.depth, self.domain)


class Domain(Record, frozen=True, kw_only=True):
    """A whole domain."""

    name: Name
    title: Text
    description: Text
    today: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    """The date at which every episode takes place."""
    rules: tuple[Text, ...]
    """What the assistant must keep to; part of its system message."""
    tables: Annotated[tuple[Table, ...], Meta(min_length=1)]
    rows: dict[str, tuple[tuple[Cell, ...], ...]]
    """Table → its rows at the start, each in the order of the columns."""
    tools: tuple[ToolSpec, ...]
    tasks: tuple[SyntheticTask, ...] = ()


def named_task(domain: str, draft: TaskDraft) -> SyntheticTask:
    """``draft`` as a task of ``domain``; equal drafts have equal names."""
    task_id = f"{domain}-{content_id(msgspec.to_builtins(draft))[:10]}"
    return SyntheticTask(
        task_id=task_id, domain=domain, depth=draft.depth, turns=draft.turns, assertions=draft.assertions
    )


def system_text(domain: Domain) -> str:
    """What the model is told at the start of every episode."""
    rules = "\n".join(f"- {rule}" for rule in domain.rules)
    return (
        f"You are the assistant of {domain.title}. Today is {domain.today}.\n"
        "Look things up with the tools and do what the user asks, as far as these rules allow:\n"
        f"{rules}\n"
        "Say what you found or did. When a rule forbids a wish, change nothing and say why."
    )


LINE = 110
"""Characters up to which a value stands on one line of a domain's file."""


def domain_text(domain: Domain) -> str:
    """The file of a domain: JSON, one row a line, the same bytes for the same domain."""
    return "".join(_laid_out(msgspec.to_builtins(domain), 0)) + "\n"


def _laid_out(value: Any, level: int) -> list[str]:
    flat = dumps(value)
    if len(flat) <= LINE - level or not isinstance(value, dict | list | tuple) or not value:
        return [flat]
    inner = "\n" + " " * (level + 1)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    parts: list[str] = []
    for number, (key, item) in enumerate(items):
        name = f"{dumps(key)}: " if isinstance(value, dict) else ""
        parts += [inner if number == 0 else "," + inner, name, *_laid_out(item, level + 1)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [opening, *parts, "\n" + " " * level, closing]


def parse_domain(text: str, *, source: str) -> Domain:
    """The domain in a file's text. Raises ``DataError`` naming ``source`` and the field.

    Only its form is looked at; ``problems.domain_problems`` says what else is wrong with it.
    """
    try:
        return msgspec.convert(loads(text), Domain)
    except (JsonProblem, msgspec.ValidationError) as error:
        raise DataError(f"{error}; expected a domain as `firstchair synth make` writes it", path=source) from None


def read_domain(path: Path) -> Domain:
    """The domain in a file. Raises ``DataError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise DataError(f"{reason}; expected a domain's JSON file", path=str(path)) from None
    return parse_domain(text, source=str(path))
