"""What the pages about recorded sessions show. Nothing of a session is ever run or loaded: it is text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from firstchair.chat.messages import (
    CallMark,
    ImagePart,
    Message,
    Part,
    RawPart,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    ending,
)
from firstchair.core.jsontext import dumps
from firstchair.gateway.console.desk import Desk
from firstchair.gateway.console.views import SessionLine
from firstchair.traces.session import Session

PAGE = 50
MESSAGES = 200
"""Of a session on one page."""


class Piece(NamedTuple):
    """One part of a message as it is shown."""

    kind: str
    """``text``, ``thinking``, ``note`` or ``call``."""
    text: str
    name: str = ""
    is_bad: bool = False


class Shown(NamedTuple):
    """A message as it is shown."""

    place: int
    role: str
    name: str
    pieces: list[Piece]
    is_error: bool
    ending: str | None


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def listing(desk: Desk, query: Mapping[str, str]) -> dict[str, Any]:
    """For the template of the list."""
    store, skip, tool = desk.traces(), _number(query, "skip"), query.get("tool", "").strip()[:256]
    found: dict[str, Any] = {"skip": skip, "page": PAGE, "tool": tool, "sessions": [], "total": 0}
    if store is not None:
        filters: Any = {"tool": tool} if tool else {}
        found["sessions"] = [SessionLine.of(row) for row in store.newest(PAGE, skip=skip, **filters)]
        found["total"] = store.count(**filters)
    return found


def values(session: Session, tools: tuple[Tool, ...], query: Mapping[str, str]) -> dict[str, Any]:
    """For the template of one session."""
    first = min(_number(query, "from"), max(0, len(session.messages) - 1))
    chosen = session.messages[first : first + MESSAGES]
    names = {call.id: call.name for message in session.messages for call in message.tool_calls}
    errors = sum(message.is_error for message in session.messages)
    return {
        "session": session,
        "tools": tools,
        "shown": [shown(first + place, message, names) for place, message in enumerate(chosen)],
        "first": first,
        "step": MESSAGES,
        "errors": errors,
        "failed": sum(call.error is not None for call in session.calls),
    }


def shown(index: int, message: Message, names: Mapping[str, str]) -> Shown:
    pieces: list[Piece] = []
    placed: set[int] = set()
    for part in message.content:
        if isinstance(part, CallMark):
            if part.index < len(message.tool_calls):
                placed.add(part.index)
                pieces.append(_call(message.tool_calls[part.index]))
        else:
            pieces.append(_piece(part))
    pieces += [_call(call) for place, call in enumerate(message.tool_calls) if place not in placed]
    name = message.name or names.get(message.tool_call_id or "", "")
    return Shown(index, message.role, name, pieces, message.is_error, ending(message))


def _piece(part: Part) -> Piece:
    if isinstance(part, TextPart):
        return Piece("text", part.text)
    if isinstance(part, ThinkingPart):
        return Piece("thinking", part.text or "(the provider keeps it to itself)")
    if isinstance(part, ImagePart):
        where = f"{len(part.url):,} characters of data" if part.url.startswith("data:") else part.url
        return Piece("note", f"image ({part.media_type or 'of unknown kind'}): {where}")
    assert isinstance(part, RawPart)
    return Piece("note", dumps(part.data), name=part.provider)


def _call(call: ToolCall) -> Piece:
    return Piece("call", call.arguments, name=call.name, is_bad=call.parsed() is None)
