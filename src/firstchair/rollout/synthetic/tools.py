"""The tools of a domain: how they are offered to a model, and how a call of one is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firstchair.chat.messages import Tool
from firstchair.chat.schema_check import check_arguments
from firstchair.core.jsontext import dumps
from firstchair.rollout.synthetic.database import Database, Refused
from firstchair.rollout.synthetic.domain import Parameter, ToolSpec

MAX_ROWS = 50
MAX_CHARS = 8000
"""Of a result; what is cut is said."""

_TYPES = {"text": "string", "integer": "integer", "real": "number", "boolean": "boolean"}


@dataclass(frozen=True)
class Answer:
    """What a call gave."""

    text: str
    """JSON: a list of rows as objects, or ``{"done": true}``; words when it failed."""
    is_error: bool = False


def tool_of(spec: ToolSpec) -> Tool:
    """The tool as a model sees it."""
    return Tool(
        name=spec.name,
        description=spec.description,
        parameters={
            "type": "object",
            "properties": {parameter.name: _property(parameter) for parameter in spec.parameters},
            "required": [parameter.name for parameter in spec.parameters if not parameter.optional],
            "additionalProperties": False,
        },
    )


def _property(parameter: Parameter) -> dict[str, Any]:
    made: dict[str, Any] = {"type": _TYPES[parameter.type]}
    if parameter.description:
        made["description"] = parameter.description
    if parameter.values:
        made["enum"] = list(parameter.values)
    return made


def carry_out(database: Database, spec: ToolSpec, tool: Tool, arguments: Any, *, today: str) -> Answer:
    """One call on ``database``: conditions, writes, reads. A call that fails leaves it as it was."""
    if not isinstance(arguments, dict):
        return Answer("bad arguments: expected one JSON object", is_error=True)
    fault = check_arguments(tool.parameters, arguments)
    if fault is not None:
        return Answer(f"bad argument: {fault.path}: {fault.message}", is_error=True)
    values = {parameter.name: arguments.get(parameter.name) for parameter in spec.parameters} | {"today": today}
    try:
        with database.all_or_nothing():
            for condition in spec.conditions:
                if not database.select(condition.sql, values, max_rows=1)[1]:
                    raise Refused(filled(condition.otherwise, values))
            for sql in spec.writes:
                database.write(sql, values)
            return _result(database, spec, values)
    except Refused as error:
        return Answer(str(error), is_error=True)


def _result(database: Database, spec: ToolSpec, values: Mapping[str, Any]) -> Answer:
    if not spec.reads:
        return Answer('{"done": true}')
    names, rows = database.select(spec.reads, values, max_rows=MAX_ROWS + 1)
    if not rows and spec.empty:
        raise Refused(filled(spec.empty, values))
    shown: list[str] = []
    room = MAX_CHARS
    for row in rows[:MAX_ROWS]:
        text = dumps(dict(zip(names, row, strict=True)))
        room -= len(text) + 2
        if room < 0:
            break
        shown.append(text)
    cut = f"\n({len(shown)} rows shown; there are more)" if len(shown) < len(rows) else ""
    return Answer(f"[{', '.join(shown)}]{cut}")


def filled(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with each ``{name}`` replaced by the value of that name; anything else in braces stays."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", "nothing" if value is None else str(value))
    return text
