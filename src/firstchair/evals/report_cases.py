"""The cases of a report: every decision with its conversation, gold and candidate, small enough to be mailed.

Messages are stored once per session. Long texts are cut with a note of what is missing; when the whole is still too
large, the conversations of passing decisions go first, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstchair.catalog.verdict import Verdict
from firstchair.chat.actions import Action
from firstchair.chat.messages import ImagePart, Message, RawPart
from firstchair.core.jsontext import JsonProblem, dumps, loads
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.evals.metrics import undecided
from firstchair.evals.routing import gold_label, made_label
from firstchair.evals.run_record import DecisionRow, Run

BUDGET = 4_000_000
"""Characters of JSON for all cases."""
TEXT_LIMITS = (4000, 1500, 600, 200)
"""Characters kept of one text, tried in this order until the budget holds."""


def report_cases(run: Run, golden: GoldenSet, baseline: Run | None = None, *, budget: int = BUDGET) -> dict[str, Any]:
    """``{cases, sessions, cut}``: JSON-able, at most about ``budget`` characters unless the bare cases exceed it."""
    before = {row.dp_id: row for row in baseline.rows} if baseline else {}
    made: dict[str, Any] = {}
    for limit in TEXT_LIMITS:
        made = _cases(run, golden, before, limit)
        if len(dumps(made)) <= budget:
            return made
    return _without_passes(made, budget)


def _cases(run: Run, golden: GoldenSet, before: Mapping[str, DecisionRow], limit: int) -> dict[str, Any]:
    by_id = {decision.dp_id: decision for decision in golden.decisions}
    used = {row.session_id for row in run.rows}
    cases = []
    for row in run.rows:
        decision = by_id[row.dp_id]
        case: dict[str, Any] = {
            "id": row.dp_id,
            "session": row.session_id,
            "end": decision.context_end,
            "gold": _action(decision.gold or decision.observed, limit),
            "accept": len(decision.accept),
            "known_bad": [_action(bad, limit) for bad in decision.known_bad],
            "tags": list(row.tags),
            "verified": row.verified,
            "route": gold_label(row),
            "after": _side(row, limit),
        }
        if row.dp_id in before:
            case["before"] = _side(before[row.dp_id], limit)
        cases.append(case)
    sessions = {
        session_id: [_message(message, limit) for message in session.messages]
        for session_id, session in golden.sessions.items()
        if session_id in used
    }
    return {"cases": cases, "sessions": sessions, "cut": limit, "left_out": 0}


def _side(row: DecisionRow, limit: int) -> dict[str, Any]:
    side: dict[str, Any] = {
        "strict": str(row.scored.strict),
        "lenient": str(row.scored.lenient),
        "rule": row.scored.rule,
        "route": made_label(row) if row.obtained else "error",
    }
    if row.scored.field:
        side["field"] = row.scored.field
    if row.scored.fields:
        side["fields"] = list(row.scored.fields)
    if undecided(row):
        side["undecided"] = True
    if row.action is not None:
        side["action"] = _action(row.action, limit)
    if row.text and (row.scored.lenient is Verdict.MALFORMED or row.problems):
        side["raw"] = _cut(row.text, limit)
    if row.problems:
        side["problems"] = [f"{problem.kind}: {problem.message}" for problem in row.problems]
    if row.error:
        side["error"] = _cut(row.error, limit)
    if row.salvaged:
        side["salvaged"] = True
    return side


def _action(action: Action, limit: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if action.thinking:
        shown["thinking"] = _cut(action.thinking, limit)
    if action.text:
        shown["text"] = _cut(action.text, limit)
    if action.calls:
        shown["calls"] = [
            {"name": call.name, "args": _args(call.parsed(), call.arguments, limit)} for call in action.calls
        ]
    return shown


def _args(value: dict[str, Any] | None, text: str, limit: int) -> dict[str, str] | str:
    """Field → JSON text of its value, so that a browser never changes a number; the raw text when malformed."""
    if value is None:
        return _cut(text, limit)
    return {key: _cut(_value(item), limit) for key, item in value.items()}


def _value(item: Any) -> str:
    """A text without quotes, unless it would then look like another JSON value (``3`` and ``"3"`` differ)."""
    if not isinstance(item, str):
        return dumps(item)
    try:
        loads(item)
    except JsonProblem:
        return item
    return dumps(item)


def _message(message: Message, limit: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role}
    if message.thinking:
        shown["thinking"] = _cut(message.thinking, limit)
    text = message.text + "".join(_part(part) for part in message.content if isinstance(part, ImagePart | RawPart))
    if text:
        shown["text"] = _cut(text, limit)
    if message.tool_calls:
        shown["calls"] = [{"name": call.name, "args": _cut(call.arguments, limit)} for call in message.tool_calls]
    if message.name:
        shown["name"] = message.name
    if message.is_error:
        shown["error"] = True
    return shown


def _part(part: ImagePart | RawPart) -> str:
    return "[image]" if isinstance(part, ImagePart) else f"[{part.provider} part: {part.data.get('type', 'unknown')}]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … [{len(text) - limit:,} more characters]"


def _without_passes(made: dict[str, Any], budget: int) -> dict[str, Any]:
    """Keep the conversations of failing decisions, session by session, while there is room; all verdicts stay."""
    failing: dict[str, int] = {}
    for case in made["cases"]:
        failing[case["session"]] = failing.get(case["session"], 0) + (case["after"]["lenient"] != "pass")
    room = budget - len(dumps({**made, "sessions": {}}))
    kept: dict[str, Any] = {}
    for session_id in sorted(failing, key=lambda name: (-failing[name], name)):
        size = len(dumps(made["sessions"][session_id])) + len(session_id) + 8
        if size <= room:
            kept[session_id] = made["sessions"][session_id]
            room -= size
    return {**made, "sessions": kept, "left_out": len(made["sessions"]) - len(kept)}
