"""Anthropic Messages ⇄ canonical messages and tools, without loss.

``messages_to_anthropic(messages_from_anthropic(rows, system))`` gives back ``system`` and ``rows`` for everything a
harness can send: cache marks, signatures, redacted reasoning, images, results with errors, unknown blocks and
fields. One normalisation: in a user turn the tool results stand before all other content, as the API demands.
What only this wire knows is kept under ``extra["anthropic"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from firstchair.chat.anthropic_blocks import (
    MissingResult,
    block_out,
    call_in,
    call_out,
    content_form,
    part_in,
    parts_in,
    plain_text,
    result_in,
    result_out,
)
from firstchair.chat.messages import CallMark, Message, Part, RawPart, TextPart, ThinkingPart, Tool, ToolCall
from firstchair.chat.wire_fields import Loss, check_results, kind_of, need, rest
from firstchair.core.errors import DataError

Malformed = Literal["refuse", "carry"]
"""What becomes of arguments that are no JSON object: refused, or carried as ``{MALFORMED_KEY: text}``."""
MidSystem = Literal["system", "user", "refuse"]
"""A system message inside the conversation: sent as a system message, as a marked user turn (older models), or
refused."""

SYSTEM_MARK = ("<system-message>\n", "\n</system-message>")
"""Around a system message that is sent as a user turn. It is not read back: a user could write it too."""
_KNOWN = frozenset({"role", "content"})

OWN_TURN = "own_turn"
"""Key in ``Message.extra``: the message opened a user turn though it could have shared the one before it."""
INLINE = "inline_system"
"""Key in ``Message.extra``: a system message that stood among the messages."""


@dataclass(frozen=True)
class AnthropicPrompt:
    """What a Messages request needs of a conversation."""

    system: str | list[dict[str, Any]] | None
    messages: list[dict[str, Any]] = field(default_factory=list)


def messages_from_anthropic(
    messages: Sequence[Mapping[str, Any]],
    system: str | Sequence[Mapping[str, Any]] | None = None,
    *,
    strict: bool = True,
) -> tuple[Message, ...]:
    """Canonical messages, the system prompt first.

    Each tool result of a user turn becomes a tool message, before the turn's other content. Raises ``DataError``
    with the field, such as ``messages[3].content[0].tool_use_id``. ``strict`` also refuses results that answer
    no call.
    """
    need(messages, list | tuple, "messages", "a list of messages")  # type: ignore[arg-type]
    out: list[Message] = []
    places: list[str] = []
    if system is not None:
        out.append(_system_in(system, "system", {}, {}))
        places.append("system")
    for index, row in enumerate(messages):
        where = f"messages[{index}]"
        need(row, dict, where, "an object with role and content")
        role, content, own = row.get("role"), row.get("content"), rest(row, _KNOWN)
        if not isinstance(content, str | list):
            raise DataError(f"found {kind_of(content)}; expected text or a list of blocks", field=f"{where}.content")
        if role == "system":
            out.append(_system_in(content, f"{where}.content", own, {INLINE: True}))
        elif role == "assistant":
            out.append(_assistant_in(content, where, own))
        elif role == "user":
            _user_in(content, where, own, out)
        else:
            raise DataError(f"found {role!r}; expected user, assistant or system", field=f"{where}.role")
        places.extend([where] * (len(out) - len(places)))
    if strict:
        check_results(out, places=places, result_field="content.tool_use_id", call_field="content")
    return tuple(out)


def _extra(own: Mapping[str, Any]) -> dict[str, Any]:
    return {"anthropic": dict(own)} if own else {}


def _system_in(system: Any, where: str, own: dict[str, Any], notes: dict[str, Any]) -> Message:
    if isinstance(system, str):
        parts: tuple[Part, ...] = (TextPart(text=system),) if system else ()
    else:
        need(system, list | tuple, where, "text or a list of text blocks")  # type: ignore[arg-type]
        parts = parts_in(system, where)
        for position, part in enumerate(parts):
            need(part, TextPart, f"{where}[{position}]", "a text block")
    return Message(role="system", content=parts, extra=_extra(content_form(system, parts, own)) | notes)


def _assistant_in(content: Any, where: str, own: dict[str, Any]) -> Message:
    if isinstance(content, str):
        parts: tuple[Part, ...] = (TextPart(text=content),) if content else ()
        return Message(role="assistant", content=parts, extra=_extra(content_form(content, parts, own)))
    placed: list[Part] = []
    calls: list[ToolCall] = []
    interleaved = False
    for position, block in enumerate(content):
        block_field = f"{where}.content[{position}]"
        need(block, dict, block_field, "a content block, an object with a type")
        if block.get("type") == "tool_use":
            placed.append(CallMark(index=len(calls)))
            calls.append(call_in(block, block_field))
        elif block.get("type") == "tool_result":
            raise DataError("a tool result in an assistant message; expected it in a user turn", field=block_field)
        else:
            interleaved = interleaved or bool(calls)
            placed.append(part_in(block, block_field))
    parts = tuple(placed) if interleaved else tuple(part for part in placed if not isinstance(part, CallMark))
    own = content_form(content, parts if not calls else (*parts, CallMark(index=0)), own)
    return Message(role="assistant", content=parts, tool_calls=tuple(calls), extra=_extra(own))


def _user_in(content: Any, where: str, own: dict[str, Any], out: list[Message]) -> None:
    after_result = bool(out) and out[-1].role == "tool"
    if isinstance(content, str):
        parts: tuple[Part, ...] = (TextPart(text=content),) if content else ()
        own = content_form(content, parts, own)
        out.append(Message(role="user", content=parts, extra=_extra(own) | _turn(after_result)))
        return
    results: list[Message] = []
    others: list[Part] = []
    for position, block in enumerate(content):
        block_field = f"{where}.content[{position}]"
        need(block, dict, block_field, "a content block, an object with a type")
        kind = block.get("type")
        if kind == "tool_result":
            results.append(result_in(block, block_field, _turn(after_result and not results)))
        elif kind in ("tool_use", "thinking", "redacted_thinking"):
            raise DataError(f"a {kind} block in a user turn; expected it in an assistant message", field=block_field)
        else:
            others.append(part_in(block, block_field))
    out.extend(results)
    if others or not results:
        # A turn with results is a list of blocks anyway; only a turn without them can be text.
        form = {} if results else content_form(content, tuple(others), {})
        extra = _extra({**own, **form}) | _turn(after_result and not results)
        out.append(Message(role="user", content=tuple(others), extra=extra))
    elif own:
        raise DataError(f"unknown field {next(iter(own))!r} beside tool results alone", field=where)


def _turn(new: bool) -> dict[str, Any]:
    """The note that a message opened a turn of its own though it could have shared the one before it."""
    return {OWN_TURN: True} if new else {}


def messages_to_anthropic(
    messages: Sequence[Message],
    *,
    dropped: list[str] | None = None,
    malformed: Malformed = "refuse",
    mid_system: MidSystem = "system",
    missing_result: MissingResult = "refuse",
) -> AnthropicPrompt:
    """An Anthropic prompt. What this wire cannot carry is appended to ``dropped``, or raises without it.

    Leading system messages become ``system``, in order. Results follow their calls in one user turn, before the
    text of a user message that comes next. Not carried: names, refusals, audio, unsigned reasoning, unknown
    OpenAI parts. ``missing_result="insert"`` answers an unanswered call with a declared error. Raises
    ``DataError`` with the field.
    """
    loss = Loss(dropped)
    start = 0
    while start < len(messages) and messages[start].role == "system" and INLINE not in messages[start].extra:
        start += 1
    system = _system_out(messages[:start], loss)
    rows: list[dict[str, Any]] = []
    index = start
    while index < len(messages):
        message, where = messages[index], f"messages[{index}]"
        if message.role == "tool":
            raise DataError(
                f"result {message.tool_call_id!r} answers no call before it", field=f"{where}.tool_call_id"
            )
        if message.role == "system":
            rows.append(_mid_system_out(message, mid_system, loss, where))
        elif message.role == "user":
            rows.append({"role": "user", "content": _content_out(message, loss, where), **_fields(message)})
            _note_message(message, loss, where)
        else:
            rows.append(_assistant_out(message, malformed, loss, where))
            if message.tool_calls:
                index = _results_out(messages, index, missing_result, loss, rows)
                continue
        index += 1
    return AnthropicPrompt(system=system, messages=rows)


def _own(message: Message) -> Mapping[str, Any]:
    own: Mapping[str, Any] = message.extra.get("anthropic", {})
    return own


def _fields(message: Message) -> dict[str, Any]:
    """Unknown fields of the message as they were sent."""
    own = _own(message)
    return {key: value for key, value in own.items() if key != "content"} if own else {}


def _note_message(message: Message, loss: Loss, where: str) -> None:
    if message.name is not None:
        loss.note(f"{where}.name", "this wire has no names of participants")
    loss.extras(message.extra, "openai", where)


def _system_out(messages: Sequence[Message], loss: Loss) -> str | list[dict[str, Any]] | None:
    if not messages:
        return None
    for index, message in enumerate(messages):
        _note_message(message, loss, f"messages[{index}]")
    if len(messages) == 1:
        return _content_out(messages[0], loss, "messages[0]")
    return [
        block_out(part, loss, f"messages[{index}].content[{position}]")
        for index, message in enumerate(messages)
        for position, part in enumerate(message.content)
    ]


def _mid_system_out(message: Message, mid_system: MidSystem, loss: Loss, where: str) -> dict[str, Any]:
    _note_message(message, loss, where)
    if mid_system == "refuse":
        raise DataError("a system message inside the conversation, which this target refuses", field=where)
    if mid_system == "user":
        return {"role": "user", "content": f"{SYSTEM_MARK[0]}{message.text}{SYSTEM_MARK[1]}"}
    return {"role": "system", "content": _content_out(message, loss, where), **_fields(message)}


def _content_out(message: Message, loss: Loss, where: str) -> str | list[dict[str, Any]]:
    """Content of a message without calls: text when it is one plain text block that was not sent as a list."""
    noted = _own(message).get("content")
    if not message.content and noted != "blocks":
        return ""
    only = plain_text(message.content)
    if only is not None and noted != "blocks":
        loss.extras(only.extra, "openai", f"{where}.content[0]")
        return only.text
    return _blocks_out(message, loss, where)


def _blocks_out(message: Message, loss: Loss, where: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for position, part in enumerate(message.content):
        part_field = f"{where}.content[{position}]"
        if isinstance(part, ThinkingPart) and part.signature is None:
            loss.note(part_field, "reasoning without a signature; the API takes back only what it signed")
        elif isinstance(part, RawPart) and part.provider != "anthropic":
            loss.note(part_field, f"a part of type {part.data.get('type')!r} exists only on the {part.provider} wire")
        elif not isinstance(part, CallMark):
            out.append(block_out(part, loss, part_field))
    return out


def _assistant_out(message: Message, malformed: Malformed, loss: Loss, where: str) -> dict[str, Any]:
    _note_message(message, loss, where)
    calls = [
        call_out(call, malformed, loss, f"{where}.tool_calls[{position}]")
        for position, call in enumerate(message.tool_calls)
    ]
    if not calls:
        return {"role": "assistant", "content": _content_out(message, loss, where), **_fields(message)}
    marked = [part.index for part in message.content if isinstance(part, CallMark)]
    if not marked:
        return {"role": "assistant", "content": [*_blocks_out(message, loss, where), *calls], **_fields(message)}
    if sorted(marked) != list(range(len(calls))):
        raise DataError(
            f"call marks name {marked}; expected each of {len(calls)} calls once", field=f"{where}.content"
        )
    blocks: list[dict[str, Any]] = []
    for position, part in enumerate(message.content):
        if isinstance(part, CallMark):
            blocks.append(calls[part.index])
        else:
            one = Message(role="assistant", content=(part,))
            blocks.extend(_blocks_out(one, loss, f"{where}.content[{position}]"))
    return {"role": "assistant", "content": blocks, **_fields(message)}


def _results_out(
    messages: Sequence[Message], index: int, missing: MissingResult, loss: Loss, rows: list[dict[str, Any]]
) -> int:
    """Write the user turns that answer the calls of ``messages[index]``; returns the index after them."""
    calls = {call.id: position for position, call in enumerate(messages[index].tool_calls)}
    turns: list[list[dict[str, Any]]] = []
    answered: set[str] = set()
    after = index + 1
    while after < len(messages) and messages[after].role == "tool":
        message, where = messages[after], f"messages[{after}]"
        call_id = message.tool_call_id or ""
        if call_id not in calls or call_id in answered:
            problem = "is answered twice" if call_id in answered else "names no call of the message before"
            raise DataError(f"{call_id!r} {problem}", field=f"{where}.tool_call_id")
        answered.add(call_id)
        if not turns or OWN_TURN in message.extra:
            turns.append([])
        turns[-1].append(result_out(message, loss, where))
        after += 1
    open_calls = [call_id for call_id in calls if call_id not in answered]
    if after == len(messages) and not turns:
        return after  # the conversation ends with the calls: nothing is missing yet
    if open_calls and missing == "refuse":
        raise DataError(
            f"call {open_calls[0]!r} has no result; the API wants all results right after the calls",
            field=f"messages[{index}].tool_calls[{calls[open_calls[0]]}].id",
        )
    declared = {"content": "[no result was recorded]", "is_error": True}
    inserted = [{"type": "tool_result", "tool_use_id": call_id, **declared} for call_id in open_calls]
    if inserted:
        turns = turns or [[]]
        turns[-1].extend(inserted)
    rows.extend({"role": "user", "content": turn} for turn in turns)
    if after < len(messages) and messages[after].role == "user" and OWN_TURN not in messages[after].extra:
        message, where = messages[after], f"messages[{after}]"
        _note_message(message, loss, where)
        rows[-1]["content"].extend(_blocks_out(message, loss, where))
        rows[-1].update(_fields(message))
        after += 1
    return after


_TOOL_KEYS = frozenset({"name", "description", "input_schema"})


def tools_from_anthropic(rows: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Canonical tools. A tool that Anthropic hosts (it has no schema) is kept whole under ``extra``.

    Raises ``DataError`` with the field, such as ``tools[2].input_schema``.
    """
    need(rows, list | tuple, "tools", "a list of tools")  # type: ignore[arg-type]
    tools: list[Tool] = []
    for index, row in enumerate(rows):
        where = f"tools[{index}]"
        need(row, dict, where, "an object with name and input_schema")
        name = need(row.get("name"), str, f"{where}.name", "text")
        if "input_schema" not in row and row.get("type") not in (None, "custom"):
            tools.append(Tool(name=name, extra={"anthropic_whole": dict(row)}))
            continue
        schema = need(row.get("input_schema"), dict, f"{where}.input_schema", "a JSON Schema object")
        own = rest(row, _TOOL_KEYS)
        description = row.get("description")
        if "description" in row and not isinstance(description, str):
            own["description"] = need(description, type(None), f"{where}.description", "text")
        if not schema:
            own["input_schema"] = schema
        tools.append(Tool(name=name, description=description, parameters=schema, extra=_extra(own)))
    return tuple(tools)


def tools_to_anthropic(tools: Sequence[Tool], *, dropped: list[str] | None = None) -> list[dict[str, Any]]:
    """Anthropic tools; a tool without parameters gets the empty object schema that the API demands.

    Raises ``DataError`` for another provider's hosted tool.
    """
    loss = Loss(dropped)
    rows: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        own, foreign = tool.extra.get("anthropic", {}), tool.extra.get("openai", {})
        if "anthropic_whole" in tool.extra:
            rows.append(tool.extra["anthropic_whole"])
            continue
        if "openai_whole" in tool.extra:
            kind = tool.extra["openai_whole"].get("type")
            raise DataError(f"{kind!r} is a tool that only OpenAI knows", field=where)
        row: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            row["description"] = tool.description
        row["input_schema"] = tool.parameters or {"type": "object", "properties": {}}
        outer = tool.extra.get("openai_outer", {})
        for source in (foreign, outer):
            row |= {key: source[key] for key in ("strict", "cache_control") if key in source}
        loss.extras(tool.extra, "openai", where, carried=("strict", "cache_control"))
        loss.extras({"openai": outer}, "openai", where, carried=("cache_control",))
        rows.append(row | own)
    return rows


def message_from_anthropic_response(response: Mapping[str, Any]) -> Message:
    """The message of a Messages response. Null fields of its blocks mean nothing there and are left out.

    Raises ``DataError`` with the field.
    """
    need(response, dict, "response", "a message object")
    content = need(response.get("content"), list, "content", "a list of blocks")
    kept = [
        {key: value for key, value in block.items() if value is not None} if isinstance(block, dict) else block
        for block in content
    ]
    try:
        message = _assistant_in(kept, "", {})
    except DataError as error:
        raise DataError(error.reason, field=(error.field or "").removeprefix(".")) from None
    return Message(role="assistant", content=message.content, tool_calls=message.tool_calls)


def message_to_anthropic_response(
    message: Message,
    *,
    model: str,
    response_id: str,
    stop_reason: str,
    usage: Mapping[str, Any],
    stop_sequence: str | None = None,
    malformed: Malformed = "carry",
    dropped: list[str] | None = None,
) -> dict[str, Any]:
    """A Messages response. Reasoning that nobody signed gets an empty signature."""
    parts = tuple(
        ThinkingPart(text=part.text, signature="", extra=part.extra)
        if isinstance(part, ThinkingPart) and part.signature is None
        else part
        for part in message.content
    )
    whole = Message(
        role="assistant",
        content=parts,
        tool_calls=message.tool_calls,
        extra={**message.extra, "anthropic": {"content": "blocks"}},
    )
    content = _assistant_out(whole, malformed, Loss(dropped), "message")["content"]
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": dict(usage),
    }
