"""What must hold for a session before it may enter the store or a file: pairing of calls and results, finite
numbers, token arrays of equal length. A malformed tool call is a recorded fact, not a fault, and passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from firstchair.chat.messages import CallMark, Message, RawPart, TextPart
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps
from firstchair.traces.session import Session

_BAD_ID = re.compile(r"[\x00-\x20\x7f\u2028\u2029]")
MAX_ID_CHARS = 512
MAX_USAGE = 10**12
"""Tokens of one model call. More is no count, and the sum of some would not fit the store."""


def check_session(session: Session) -> None:
    """Raise ``DataError`` (with ``field``) at the first thing that is wrong."""
    check_id(session.session_id, field="session_id")
    if not session.messages:
        raise DataError("found no message; a session has at least one", field="messages")
    check_pairing(session.messages)
    for index, message in enumerate(session.messages):
        _check_extras(message, index)
    if not 0 <= session.context_end <= len(session.messages):
        raise DataError(
            f"found {session.context_end}; the session has {len(session.messages)} messages", field="context_end"
        )
    for turn in session.turns:
        if not 0 <= turn.start < turn.end <= len(session.messages):
            raise DataError(
                f"found {turn.start}:{turn.end}; expected a range in 0:{len(session.messages)}", field="turns"
            )
    for index, call in enumerate(session.calls):
        if call.message_index is not None and not 0 <= call.message_index < len(session.messages):
            raise DataError(
                f"found {call.message_index}; the session has {len(session.messages)} messages",
                field=f"calls[{index}].message_index",
            )
        if not all(0 <= tokens <= MAX_USAGE for tokens in msgspec.structs.astuple(call.usage)):
            raise DataError(f"found a count outside 0 to {MAX_USAGE:,} tokens", field=f"calls[{index}].usage")
        if call.tokens is not None:
            call.tokens.check(field=f"calls[{index}].tokens")
    finite_json(session.labels, field="labels")
    finite_json(session.meta, field="meta")


def check_id(text: str, *, field: str) -> None:
    """An id is 1 to 512 characters without white space or control characters: it stands in file names of
    reports, on command lines and before the ``:index`` of a decision.
    """
    if not text or len(text) > MAX_ID_CHARS or _BAD_ID.search(text):
        raise DataError(
            f"found {text[:60]!r} ({len(text)} characters); expected 1 to {MAX_ID_CHARS} characters "
            "without white space or control characters",
            field=field,
        )


def check_pairing(messages: Iterable[Message]) -> None:
    """Every tool message answers, once, a call of the last assistant message that made calls before it.

    Ids may return in a later message (some servers number calls from 0 each time); within one message they
    may not. A call without a result is allowed: recordings end in the middle, users interrupt.
    """
    pending: set[str] = set()
    known = False
    for index, message in enumerate(messages):
        if message.role == "assistant":
            pending = set()
            for position, call in enumerate(message.tool_calls):
                where = f"messages[{index}].tool_calls[{position}].id"
                if not call.id:
                    raise DataError("found an empty id; expected one that its result can name", field=where)
                if call.id in pending:
                    raise DataError(f"id {call.id!r} stands twice in one message; make ids unique", field=where)
                pending.add(call.id)
            known = known or bool(pending)
        elif message.role == "tool":
            where = f"messages[{index}].tool_call_id"
            if message.tool_call_id is None:
                raise DataError("found no tool_call_id; a result names the call that it answers", field=where)
            if message.tool_call_id not in pending:
                raise DataError(_unpaired(message.tool_call_id, pending, known), field=where)
            pending.discard(message.tool_call_id)


def _unpaired(found: str, pending: set[str], known: bool) -> str:
    if not known:
        return f"found {found[:80]!r}; a tool result without any call before it; add the call or drop the result"
    if not pending:
        return f"found {found[:80]!r}; no call of the message before waits for a result; correct the id"
    listed = ", ".join(repr(name[:80]) for name in sorted(pending)[:4])
    return f"found {found[:80]!r}; expected the id of a waiting call: {listed}"


def _check_extras(message: Message, index: int) -> None:
    # msgspec writes NaN as null without a word, so what holds free JSON is proven finite first.
    if message.extra:
        finite_json(message.extra, field=f"messages[{index}].extra")
    for position, part in enumerate(message.content):
        if part.__class__ is TextPart and not part.extra:
            continue
        if isinstance(part, RawPart):
            finite_json(part.data, field=f"messages[{index}].content[{position}]")
        elif not isinstance(part, CallMark):
            finite_json(part.extra, field=f"messages[{index}].content[{position}].extra")
    for position, call in enumerate(message.tool_calls):
        if call.extra:
            finite_json(call.extra, field=f"messages[{index}].tool_calls[{position}].extra")


def finite_json(value: Any, *, field: str) -> str:
    """``value`` as JSON text; ``DataError`` when it is not JSON (NaN, a set, a lone surrogate)."""
    try:
        text = dumps(value)
        text.encode("utf-8")
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", field=field) from None
    return text
