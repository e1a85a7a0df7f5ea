"""One line of a golden set's ``sessions.jsonl``: a whole recorded session and the gold of each of its decisions.

The line holds the canonical messages, from which contexts are replayed byte for byte, and beside them the view that
people and other programs read (``trace``, ``observed``, ``gold.tool`` …). Only ``messages`` and the exact ``action``
values are read back; the view is derived, and ``verify`` checks that it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from firstchair.chat.actions import Action, action_of
from firstchair.chat.messages import Message, ToolCall
from firstchair.core.errors import DataError
from firstchair.data.golden.manifest import SCHEMA_VERSION
from firstchair.traces.decisions import Accepted, DecisionPoint
from firstchair.traces.session import ModelCall, Session, Source, Turn, turns_of


class _Gold(msgspec.Struct, frozen=True, kw_only=True):
    action: Action
    verified: bool = False


class _Bad(msgspec.Struct, frozen=True, kw_only=True):
    action: Action


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    dp_id: str
    seq: int
    context_end: int
    gold: _Gold | None = None
    known_bad: tuple[_Bad, ...] = ()
    accept: tuple[Accepted, ...] = ()
    tags: tuple[str, ...] = ()
    provenance: str = ""
    scoring: dict[str, Any] = {}


class _TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    start: int
    end: int
    decision_points: tuple[_Point, ...] = ()


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: str
    session_id: str
    source: Source
    created_at: str = ""
    catalog_id: str = ""
    messages: tuple[Message, ...]
    opening: tuple[_Point, ...] = ()
    turns: tuple[_TurnRow, ...] = ()
    calls: tuple[ModelCall, ...] = ()
    labels: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    session_context_end: int = 0


_decoder = msgspec.json.Decoder(_Record)


def to_row(session: Session, decisions: tuple[DecisionPoint, ...]) -> dict[str, Any]:
    """The JSON object of ``session`` with its ``decisions``; key order is fixed, so equal input gives equal bytes."""
    turns = session.turns or turns_of(session.messages)
    per_turn: dict[int, list[dict[str, Any]]] = {}
    for decision in decisions:
        per_turn.setdefault(decision.turn, []).append(_point_row(decision))
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session.session_id,
        "source": session.source,
        "created_at": session.created_at,
        "catalog_id": session.catalog_id,
        "labels": session.labels,
        "meta": session.meta,
        "session_context_end": session.context_end,
        "turns": [_turn_row(session.messages, turn, per_turn.get(number, [])) for number, turn in enumerate(turns)],
        # Decisions before the first user message (a greeting) belong to no turn.
        "opening": per_turn.get(-1, []),
        "messages": msgspec.to_builtins(session.messages),
        "calls": msgspec.to_builtins(session.calls),
    }


def from_line(raw: bytes) -> tuple[Session, tuple[DecisionPoint, ...]]:
    """Read one line back. Raises ``DataError`` (without file and line) when it is not such a record."""
    try:
        record = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not a golden record: {error}") from None
    if record.schema_version != SCHEMA_VERSION:
        raise DataError(f"found {record.schema_version!r}; expected {SCHEMA_VERSION!r}", field="schema_version")
    session = Session(
        session_id=record.session_id,
        source=record.source,
        created_at=record.created_at,
        catalog_id=record.catalog_id,
        messages=record.messages,
        turns=tuple(Turn(start=turn.start, end=turn.end) for turn in record.turns),
        calls=record.calls,
        labels=record.labels,
        meta=record.meta,
        context_end=record.session_context_end,
    )
    points = [_decision(session, -1, point) for point in record.opening]
    for number, turn in enumerate(record.turns):
        points.extend(_decision(session, number, point) for point in turn.decision_points)
    return session, tuple(points)


def view_of(action: Action) -> dict[str, Any]:
    """The readable form of an action: ``{tool, input, tool_use_id}`` for a call, ``{tool: null, text}`` for a reply;
    several parallel calls stand in ``calls`` and the first of them also in front.
    """
    if not action.calls:
        return {"tool": None, "input": None, "tool_use_id": None, "text": action.text}
    views = [{"tool": call.name, "input": call_input(call), "tool_use_id": call.id} for call in action.calls]
    return views[0] if len(views) == 1 else {**views[0], "calls": views}


def call_input(call: ToolCall) -> dict[str, Any] | str:
    """The arguments as an object, or the text as the model wrote it when it is malformed."""
    value = call.parsed()
    return call.arguments if value is None else value


def _point_row(decision: DecisionPoint) -> dict[str, Any]:
    gold = None
    if decision.gold is not None:
        gold = {**view_of(decision.gold), "verified": decision.verified, "action": _plain(decision.gold)}
    return {
        "dp_id": decision.dp_id,
        "seq": decision.seq,
        "kind": decision.kind,
        "context_end": decision.context_end,
        "observed": view_of(decision.observed),
        "gold": gold,
        "known_bad": [{**view_of(bad), "action": _plain(bad)} for bad in decision.known_bad],
        "accept": _plain(decision.accept),
        "tags": list(decision.tags),
        "provenance": decision.provenance,
        "scoring": decision.scoring,
    }


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _turn_row(messages: tuple[Message, ...], turn: Turn, points: list[dict[str, Any]]) -> dict[str, Any]:
    inside = messages[turn.start : turn.end]
    own = [message for message in inside if message.role == "assistant"]
    results = {message.tool_call_id: message for message in inside if message.role == "tool"}
    route: list[str] = []
    calls: list[dict[str, Any]] = []
    for message in own:
        route.extend(call.name for call in message.tool_calls)
        if not message.tool_calls:
            route.append("final_reply")
        for call in message.tool_calls:
            result = results.get(call.id)
            outcome = None if result is None else {"text": result.text, "is_error": result.is_error}
            calls.append({"tool_use_id": call.id, "tool": call.name, "input": call_input(call), "result": outcome})
    return {
        "start": turn.start,
        "end": turn.end,
        "user_message": "\n".join(message.text for message in inside if message.role == "user"),
        "trace": {
            "thinking": "\n".join(message.thinking for message in own if message.thinking),
            "text": "\n".join(message.text for message in own if message.text),
            "route_sequence": route,
            "tool_calls": calls,
        },
        "decision_points": points,
    }


def _decision(session: Session, turn: int, point: _Point) -> DecisionPoint:
    if not 0 <= point.context_end < len(session.messages):
        raise DataError(
            f"found {point.context_end}; the session has {len(session.messages)} messages (dp_id {point.dp_id!r})",
            field="context_end",
        )
    message = session.messages[point.context_end]
    if message.role != "assistant":
        raise DataError(f"message {point.context_end} is not an assistant message", field="context_end")
    return DecisionPoint(
        dp_id=point.dp_id,
        session_id=session.session_id,
        turn=turn,
        seq=point.seq,
        context_end=point.context_end,
        observed=action_of(message),
        gold=point.gold.action if point.gold else None,
        known_bad=tuple(bad.action for bad in point.known_bad),
        accept=point.accept,
        verified=bool(point.gold and point.gold.verified),
        tags=point.tags,
        provenance=point.provenance,
        scoring=point.scoring,
    )
