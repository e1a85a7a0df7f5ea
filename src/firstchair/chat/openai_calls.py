"""One tool call on the OpenAI wire ⇄ canonical, and calls that a server is to read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firstchair.chat.anthropic_blocks import MALFORMED_KEY
from firstchair.chat.messages import Message, ToolCall
from firstchair.chat.wire_fields import Loss, kind_of, need, rest
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps

_CALL_KEYS = frozenset({"id", "type", "function"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})


def replayable(messages: Sequence[Message]) -> tuple[Message, ...]:
    """``messages`` for a server that is to go on with them: arguments that are no JSON object become one,
    ``{MALFORMED_KEY: text}``, as on Anthropic's wire.

    vLLM and llama.cpp parse the arguments in a history and refuse the conversation for good where one cannot be read.
    """
    return tuple(map(_replayable, messages))


def _replayable(message: Message) -> Message:
    if all(map(_can_be_read, message.tool_calls)):
        return message
    calls = tuple(
        call
        if _can_be_read(call)
        else msgspec.structs.replace(call, arguments=dumps({MALFORMED_KEY: call.arguments}))
        for call in message.tool_calls
    )
    return msgspec.structs.replace(message, tool_calls=calls)


def _can_be_read(call: ToolCall) -> bool:
    return "custom" in call.extra.get("openai", {}) or call.parsed() is not None


def call_from_openai(row: Any, where: str) -> ToolCall:
    """A canonical call. Arguments are kept byte for byte; an object (some logs hold one) is written as text."""
    need(row, dict, where, "a call, an object with id and function")
    call_id = need(row.get("id"), str, f"{where}.id", "text")
    if row.get("type") == "custom":
        return _custom_in(row, call_id, where)
    function = need(row.get("function"), dict, f"{where}.function", "an object with name and arguments")
    name = need(function.get("name"), str, f"{where}.function.name", "text")
    arguments = function.get("arguments")
    plain = row.keys() == _CALL_KEYS and function.keys() == _FUNCTION_KEYS and row["type"] == "function"
    if plain and isinstance(arguments, str):
        return ToolCall(id=call_id, name=name, arguments=arguments)
    own: dict[str, Any] = {}
    if "type" not in row:
        own["no_type"] = True
    elif row["type"] != "function":
        own["type"] = row["type"]
    for key, fields in (("outer", rest(row, _CALL_KEYS)), ("function", rest(function, _FUNCTION_KEYS))):
        if fields:
            own[key] = fields
    if not isinstance(arguments, str):
        arguments, own["arguments"] = _arguments_in(function, f"{where}.function.arguments")
    return ToolCall(id=call_id, name=name, arguments=arguments, extra={"openai": own})


def _arguments_in(function: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Arguments that are not text, as text, and the word for how they stood."""
    arguments = function.get("arguments")
    if arguments is None:
        return "{}", "null" if "arguments" in function else "absent"
    if not isinstance(arguments, dict):
        raise DataError(f"found {kind_of(arguments)}; expected the JSON text of an object", field=where)
    try:
        return dumps(arguments), "object"
    except (TypeError, ValueError) as error:
        raise DataError(f"not a JSON object: {error}", field=where) from None


def _custom_in(row: Mapping[str, Any], call_id: str, where: str) -> ToolCall:
    custom = need(row.get("custom"), dict, f"{where}.custom", "an object with name and input")
    name = need(custom.get("name"), str, f"{where}.custom.name", "text")
    text = need(custom.get("input"), str, f"{where}.custom.input", "text")
    own: dict[str, Any] = {"custom": rest(custom, frozenset({"name", "input"}))}
    outer = rest(row, frozenset({"id", "type", "custom"}))
    if outer:
        own["outer"] = outer
    return ToolCall(id=call_id, name=name, arguments=dumps({"input": text}), extra={"openai": own})


def call_to_openai(call: ToolCall, loss: Loss, where: str) -> dict[str, Any]:
    """The call as this wire writes it.

    ``extra["openai"]`` of a call: ``outer`` and ``function`` hold unknown fields, the rest says how it was written.
    """
    own = call.extra.get("openai")
    loss.extras(call.extra, "anthropic", where)
    if not own:
        return {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
    if "custom" in own:
        value = call.parsed() or {}
        custom = {"name": call.name, "input": value.get("input", ""), **own["custom"]}
        return {"id": call.id, "type": "custom", "custom": custom, **own.get("outer", {})}
    function: dict[str, Any] = {"name": call.name}
    form = own.get("arguments")
    if form == "object":
        parsed = call.parsed()
        function["arguments"] = call.arguments if parsed is None else parsed
    elif form == "null":
        function["arguments"] = None
    elif form != "absent":
        function["arguments"] = call.arguments
    row: dict[str, Any] = {"id": call.id}
    if "no_type" not in own:
        row["type"] = own.get("type", "function")
    row["function"] = function | own.get("function", {})
    row |= own.get("outer", {})
    return row
