"""Messages of the GenAI semantic conventions: ``gen_ai.input.messages`` and the events of before version 1.37.

{"role": "assistant", "parts": [{"type": "tool_call", "id", "name", "arguments"}], "finish_reason"}
event gen_ai.choice {"message": {"role", "content", "tool_calls"}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import msgspec

from firstchair.chat.messages import (
    ImagePart,
    Message,
    Part,
    RawPart,
    Role,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    text_message,
)
from firstchair.chat.openai_wire import messages_from_openai
from firstchair.core.errors import DataError
from firstchair.core.jsontext import JsonProblem, dumps, loads

_ROLES: Mapping[str, Role] = MappingProxyType(
    {
        "system": "system",
        "developer": "system",
        "user": "user",
        "human": "user",
        "assistant": "assistant",
        "model": "assistant",
        "ai": "assistant",
        "tool": "tool",
        "function": "tool",
    }
)


def structured(value: Any, field: str) -> Any:
    """An attribute that is structured, or JSON text of the structure. Raises ``DataError``."""
    if not isinstance(value, str):
        return value
    try:
        return loads(value)
    except JsonProblem as error:
        raise DataError(f"text that is not strict JSON: {error}", field=field) from None


def read_instructions(value: Any, field: str) -> tuple[Message, ...]:
    """``gen_ai.system_instructions`` as one system message. Plain text is accepted."""
    if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
        return (text_message("system", value),) if value else ()
    parts = structured(value, field)
    if not isinstance(parts, list):
        raise DataError(f"found {type(parts).__name__}; expected a list of parts", field=field)
    content, _, _ = _split(parts, field)
    return (Message(role="system", content=content),) if content else ()


def read_messages(value: Any, field: str) -> tuple[Message, ...]:
    """``gen_ai.input.messages`` or ``gen_ai.output.messages``. Raises ``DataError`` with the path."""
    rows = structured(value, field)
    if not isinstance(rows, list):
        raise DataError(f"found {type(rows).__name__}; expected a list of messages", field=field)
    messages: list[Message] = []
    for index, row in enumerate(rows):
        messages.extend(_message(row, f"{field}[{index}]"))
    return tuple(messages)


def _message(row: Any, where: str) -> list[Message]:
    if not isinstance(row, dict):
        raise DataError(f"found {type(row).__name__}; expected an object", field=where)
    role = _ROLES.get(str(row.get("role", "")).lower())
    if role is None:
        raise DataError(f"found {str(row.get('role'))[:40]!r}; expected a role", field=f"{where}.role")
    parts = row.get("parts")
    if parts is None:
        # Some writers put Chat Completions messages here.
        return list(messages_from_openai([{key: row[key] for key in row if key != "finish_reason"}]))
    if not isinstance(parts, list):
        raise DataError(f"found {type(parts).__name__}; expected a list of parts", field=f"{where}.parts")
    content, calls, results = _split(parts, f"{where}.parts")
    extra = {key: item for key, item in row.items() if key not in ("role", "parts", "finish_reason", "name")}
    name = row["name"] if isinstance(row.get("name"), str) else None
    if calls and role != "assistant":
        raise DataError(f"found a tool_call in a message of {role}; expected the assistant", field=where)
    # A result is a message of its own here, in whatever role the provider's API carries it.
    rest = role != "tool" and (content or not results)
    own = [Message(role=role, content=content, tool_calls=calls, name=name, extra=extra)] if rest else []
    if role == "tool" and content and not results:
        raise DataError("found a tool message without a tool_call_response part", field=where)
    return [*results, *own]


def _split(parts: list[Any], where: str) -> tuple[tuple[Part, ...], tuple[ToolCall, ...], list[Message]]:
    content: list[Part] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for index, part in enumerate(parts):
        place = f"{where}[{index}]"
        if not isinstance(part, dict):
            raise DataError(f"found {type(part).__name__}; expected an object", field=place)
        kind = part.get("type")
        if kind == "tool_call":
            calls.append(_call(part, place))
        elif kind == "tool_call_response":
            results.append(_result(part, place))
        else:
            read = _PARTS.get(kind) if isinstance(kind, str) else None
            content.append(read(part, place) if read is not None else RawPart(provider="other", data=part))
    return tuple(content), tuple(calls), results


def _text(part: Mapping[str, Any], place: str) -> str:
    value = part.get("content")
    if not isinstance(value, str):
        raise DataError(f"found {type(value).__name__}; expected text", field=f"{place}.content")
    return value


def _extra(part: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {key: item for key, item in part.items() if key not in ("type", *known)}


def _uri(part: Mapping[str, Any], place: str) -> Part:
    if part.get("modality") != "image" or not isinstance(part.get("uri"), str):
        return RawPart(provider="other", data=dict(part))
    return ImagePart(url=part["uri"], media_type=part.get("mime_type"))


def _blob(part: Mapping[str, Any], place: str) -> Part:
    if part.get("modality") != "image" or not isinstance(part.get("content"), str):
        return RawPart(provider="other", data=dict(part))
    kind = part.get("mime_type") or "image/png"
    return ImagePart(url=f"data:{kind};base64,{part['content']}", media_type=part.get("mime_type"))


_PARTS: Mapping[Any, Callable[[Mapping[str, Any], str], Part]] = MappingProxyType(
    {
        "text": lambda part, place: TextPart(text=_text(part, place), extra=_extra(part, "content")),
        "reasoning": lambda part, place: ThinkingPart(text=_text(part, place), extra=_extra(part, "content")),
        "uri": _uri,
        "blob": _blob,
    }
)


def _call(part: Mapping[str, Any], place: str) -> ToolCall:
    name, call_id = part.get("name"), part.get("id")
    if not isinstance(name, str):
        raise DataError(f"found {type(name).__name__}; expected text", field=f"{place}.name")
    arguments = part.get("arguments")
    # Text is what the model wrote, malformed or not; an object has lost its spelling already.
    text = arguments if isinstance(arguments, str) else "{}" if arguments is None else dumps(arguments)
    return ToolCall(id=_call_id(call_id, place), name=name, arguments=text)


def _call_id(value: Any, place: str) -> str:
    if value is None:
        # The convention allows calls without ids; ``name_calls`` gives them some.
        return ""
    if not isinstance(value, str):
        raise DataError(f"found {type(value).__name__}; expected text", field=f"{place}.id")
    return value


def _result(part: Mapping[str, Any], place: str) -> Message:
    response = part.get("response", part.get("result"))
    name = part.get("name") if isinstance(part.get("name"), str) else None
    call_id = _call_id(part.get("id"), place)
    error = part.get("is_error", False)
    text = response if isinstance(response, str) else "" if response is None else dumps(response)
    return text_message("tool", text, tool_call_id=call_id, name=name, is_error=error is True)


def name_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Ids for calls that have none, by their number in the conversation; a result without one answers the oldest
    call that waits. The same history gets the same ids in every span.
    """
    number = 0
    waiting: list[str] = []
    named: list[Message] = []
    for message in messages:
        if message.role == "assistant" and message.tool_calls:
            calls = []
            for call in message.tool_calls:
                calls.append(call if call.id else msgspec.structs.replace(call, id=f"call_{number}"))
                number += 1
            waiting = [call.id for call in calls]
            named.append(msgspec.structs.replace(message, tool_calls=tuple(calls)))
        elif message.role == "tool":
            found = message.tool_call_id or (waiting[0] if waiting else "")
            waiting = [call_id for call_id in waiting if call_id != found]
            named.append(msgspec.structs.replace(message, tool_call_id=found))
        else:
            named.append(message)
    return tuple(named)


_EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "gen_ai.system.message": "system",
        "gen_ai.user.message": "user",
        "gen_ai.assistant.message": "assistant",
        "gen_ai.tool.message": "tool",
    }
)
DETAILS_EVENT = "gen_ai.client.inference.operation.details"


def messages_of_events(events: list[dict[str, Any]], field: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """``(prompt, reply)`` of a span's message events, the convention before 1.37."""
    prompt: list[dict[str, Any]] = []
    replies: list[dict[str, Any]] = []
    for event in events:
        body = _body(event)
        if event["name"] in _EVENTS:
            prompt.append(_openai_row(body, _EVENTS[event["name"]]))
        elif event["name"] == "gen_ai.choice":
            message = structured(body.get("message", body), f"{field}.gen_ai.choice")
            if not isinstance(message, dict):
                raise DataError(f"found {type(message).__name__}; expected an object", field=f"{field}.gen_ai.choice")
            if body.get("index") in (0, None, "0"):
                replies.append(_openai_row(message, "assistant"))
    return messages_from_openai(prompt), messages_from_openai(replies[:1])


def _body(event: Mapping[str, Any]) -> dict[str, Any]:
    body = event.get("body")
    attributes = cast("dict[str, Any]", event["attributes"])
    return {**attributes, **body} if isinstance(body, dict) else attributes


_MESSAGE_FIELDS = ("content", "tool_calls", "name")


def _openai_row(body: Mapping[str, Any], role: str) -> dict[str, Any]:
    row: dict[str, Any] = {"role": role, **{key: body[key] for key in _MESSAGE_FIELDS if key in body}}
    row.setdefault("content", None if role == "assistant" else "")
    if isinstance(row.get("tool_calls"), str):
        row["tool_calls"] = structured(row["tool_calls"], "tool_calls")
    if role == "tool":
        row["tool_call_id"] = body.get("id", body.get("tool_call_id"))
        if not isinstance(row["content"], str | list):
            row["content"] = dumps(row["content"])
    calls = row.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            function["arguments"] = dumps(function["arguments"])
    return row


def read_tools(value: Any) -> tuple[Tool, ...]:
    """``gen_ai.tool.definitions``: ``{type, name, description, parameters}``, or Chat Completions' nested form."""
    rows = structured(value, "gen_ai.tool.definitions")
    if not isinstance(rows, list):
        raise DataError(f"found {type(rows).__name__}; expected a list", field="gen_ai.tool.definitions")
    tools: list[Tool] = []
    for index, row in enumerate(rows):
        place = f"gen_ai.tool.definitions[{index}]"
        row = structured(row, place)
        if not isinstance(row, dict):
            raise DataError(f"found {type(row).__name__}; expected an object", field=place)
        inner = row["function"] if isinstance(row.get("function"), dict) else row
        name, parameters = inner.get("name"), inner.get("parameters", inner.get("input_schema"))
        if not isinstance(name, str):
            raise DataError(f"found {type(name).__name__}; expected text", field=f"{place}.name")
        description = inner.get("description")
        tools.append(
            Tool(
                name=name,
                description=description if isinstance(description, str) else None,
                parameters=parameters if isinstance(parameters, dict) else {},
                extra={} if inner is not row else _extra(row, "name", "description", "parameters", "input_schema"),
            )
        )
    return tuple(tools)
