"""Every recorded call against the tools it could use: unknown tool, missing field, wrong type, with its JSON path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.chat.schema_check import check_arguments, path_text, schema_problem
from firstchair.core.jsontext import JsonProblem, loads
from firstchair.traces.session import Session

ProblemKind = Literal[
    "unknown_tool",
    "not_json",
    "missing_field",
    "unknown_field",
    "wrong_type",
    "schema_violation",
    "broken_schema",
    "orphan_result",
    "unanswered_call",
]
"""``unknown_field`` only where the schema forbids other fields; ``broken_schema``: the tool's own schema is no JSON
Schema, so its calls cannot be checked; ``unanswered_call``: the conversation went on without a result."""


class CallProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong with one recorded call or result."""

    session_id: str
    message_index: int
    call_index: int | None = None
    """Index among the message's calls; ``None`` for a result."""
    tool: str
    kind: ProblemKind
    path: str = "$"
    """JSON path below the arguments."""
    message: str


_MAX_MESSAGE = 200


def validate_session(session: Session, tools: tuple[Tool, ...]) -> tuple[CallProblem, ...]:
    """All problems of a session's calls and results, in order. Pure; an empty tuple means it is clean."""
    by_name = {tool.name: tool for tool in tools}
    found: list[CallProblem] = []
    for index, message in enumerate(session.messages):
        for position, call in enumerate(message.tool_calls):
            found.extend(
                CallProblem(
                    session_id=session.session_id,
                    message_index=index,
                    call_index=position,
                    tool=call.name,
                    kind=kind,
                    path=path,
                    message=_cut(text),
                )
                for kind, path, text in call_problems(call, by_name)
            )
    found.extend(_pairing_problems(session))
    return tuple(sorted(found, key=lambda problem: problem.message_index))


def call_problems(call: ToolCall, tools: Mapping[str, Tool]) -> Iterator[tuple[ProblemKind, str, str]]:
    """``(kind, path, message)`` of everything wrong with one call."""
    try:
        arguments = loads(call.arguments)
    except JsonProblem as problem:
        yield "not_json", "$", f"arguments are not strict JSON: {problem}"
        arguments = None
    else:
        if not isinstance(arguments, dict):
            yield "not_json", "$", f"found {type(arguments).__name__}; arguments are a JSON object"
            arguments = None
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tools)[:8]) or "none"
        yield "unknown_tool", "$", f"{call.name!r} is not offered; offered: {known}"
    elif arguments is not None:
        yield from _schema_problems(tool, arguments)


def _schema_problems(tool: Tool, arguments: dict[str, Any]) -> Iterator[tuple[ProblemKind, str, str]]:
    # The compiled check answers "fine" in microseconds; only a fault is worth the full validator.
    fault = check_arguments(tool.parameters, arguments)
    broken = _broken(tool.parameters)
    if broken is not None:
        yield "broken_schema", "$", f"the schema of {tool.name!r} is not usable: {broken}"
        return
    if fault is None:
        return
    from firstchair.chat.schema_validator import validator_of

    missing_at: set[str] = set()
    for error in validator_of(tool.parameters).iter_errors(arguments):
        path = path_text(error.absolute_path)
        if error.validator == "required":
            if path not in missing_at:
                missing_at.add(path)
                for name in error.validator_value:
                    if name not in error.instance:
                        yield "missing_field", f"{path}.{name}", f"required field {name!r} is missing"
        elif error.validator == "type":
            yield "wrong_type", path, error.message
        elif error.validator == "additionalProperties":
            yield "unknown_field", path, error.message
        else:
            yield "schema_violation", path, error.message


_CACHE_SIZE = 1024
# By identity, with the schema beside so that its id cannot be given to another object meanwhile: a schema is checked
# once, not once a call.
_checked: dict[int, tuple[Mapping[str, Any], str | None]] = {}


def _broken(schema: Mapping[str, Any]) -> str | None:
    """Why ``schema`` cannot be used, or ``None``."""
    found = _checked.get(id(schema))
    if found is None:
        if len(_checked) >= _CACHE_SIZE:
            _checked.clear()
        found = _checked[id(schema)] = (schema, schema_problem(schema))
    return found[1]


def _pairing_problems(session: Session) -> Iterator[CallProblem]:
    waiting: dict[str, tuple[int, int, str]] = {}
    for index, message in enumerate(session.messages):
        if message.role == "tool":
            if waiting.pop(message.tool_call_id or "", None) is None:
                yield _result_problem(session, index, message)
            continue
        yield from _unanswered(session, waiting)
        waiting = {call.id: (index, position, call.name) for position, call in enumerate(message.tool_calls)}
    # Calls that end the recording are simply not answered yet.


def _unanswered(session: Session, waiting: Mapping[str, tuple[int, int, str]]) -> Iterator[CallProblem]:
    for call_id, (index, position, tool) in waiting.items():
        yield CallProblem(
            session_id=session.session_id,
            message_index=index,
            call_index=position,
            tool=tool,
            kind="unanswered_call",
            message=_cut(f"no result for call {call_id!r} before the next message"),
        )


def _result_problem(session: Session, index: int, message: Message) -> CallProblem:
    return CallProblem(
        session_id=session.session_id,
        message_index=index,
        tool=message.name or "",
        kind="orphan_result",
        message=_cut(f"result {message.tool_call_id!r} answers no waiting call"),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


class ProblemCount(msgspec.Struct):
    """Totals over many sessions, kept while they stream by."""

    sessions: int = 0
    bad_sessions: int = 0
    calls: int = 0
    problems: int = 0
    by_kind: dict[str, int] = msgspec.field(default_factory=dict)

    def of(self, session: Session, problems: tuple[CallProblem, ...]) -> tuple[CallProblem, ...]:
        """Count one session's problems, and hand them back."""
        self.sessions += 1
        self.calls += sum(len(message.tool_calls) for message in session.messages)
        self.bad_sessions += bool(problems)
        self.problems += len(problems)
        for problem in problems:
            self.by_kind[problem.kind] = self.by_kind.get(problem.kind, 0) + 1
        return problems
