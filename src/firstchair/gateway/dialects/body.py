"""What all dialects do with a request body: typed fields, refusals that name the field, ids that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from firstchair.chat.call_ids import ID_RULES, CallIdMap
from firstchair.chat.messages import Message, ToolCall
from firstchair.chat.wire_fields import kind_of
from firstchair.core.errors import BadRequest, DataError
from firstchair.gateway.dialects.base import ChatRequest, ToolChoice

MAX_INT = 2**53
"""Integers that every JSON reader keeps exact."""
OPENAI_SHARED = frozenset({"service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"})
"""Fields that mean the same in Chat Completions and Responses."""
_CHANGING: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "functions": (),
    "function_call": ("auto", "none"),
    "logprobs": (False,),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "tool_choice": (),
    "mcp_servers": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "previous_response_id": (),
}
"""Fields of one dialect that change what the answer is → the values that ask for nothing special."""


@contextmanager
def refusing() -> Iterator[None]:
    """A converter's ``DataError`` as the client's ``BadRequest``."""
    try:
        yield
    except DataError as error:
        raise BadRequest(error.reason, param=error.field) from None


def _wrong(value: Any, key: str, expected: str) -> BadRequest:
    return BadRequest(f"found {kind_of(value)}; expected {expected}", param=key)


def need_text(body: Mapping[str, Any], key: str) -> str:
    """A field that must be there and not be empty."""
    value = take_text(body, key)
    if not value:
        raise BadRequest("is missing or empty; expected text", param=key)
    return value


def take_text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    if not isinstance(value, str | None):
        raise _wrong(value, key, "text")
    return value


def take_bool(body: Mapping[str, Any], key: str, *, inside: str = "") -> bool | None:
    """A flag. ``inside`` is the path before ``key``, such as ``stream_options.``."""
    value = body.get(key)
    if not isinstance(value, bool | None):
        raise _wrong(value, inside + key, "true or false")
    return value


def take_count(body: Mapping[str, Any], key: str) -> int | None:
    """A whole number of at least 1."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(value, key, "a whole number")
    if not 1 <= value <= MAX_INT:
        raise BadRequest(f"found {str(value)[:20]}; expected at least 1", param=key)
    return value


def take_number(body: Mapping[str, Any], key: str, *, low: float, high: float) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, key, "a number")
    if not low <= value <= high:
        raise BadRequest(f"found {str(value)[:20]}; expected {low:g} to {high:g}", param=key)
    return value


def take_object(body: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    value = body.get(key)
    if not isinstance(value, dict | None):
        raise _wrong(value, key, "an object")
    return value


def take_texts(body: Mapping[str, Any], key: str, *, or_one: bool = False) -> tuple[str, ...]:
    """A list of texts, or one text where that is allowed."""
    value = body.get(key)
    if value is None:
        return ()
    if or_one and isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(value, key, "text or a list of texts" if or_one else "a list of texts")
    return tuple(value)


def take_list(body: Mapping[str, Any], key: str) -> list[Any]:
    """A list, empty when there is none."""
    value = body.get(key)
    if not isinstance(value, list | None):
        raise _wrong(value, key, "a list")
    return value or []


def extra_of(body: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The fields beyond ``known``, verbatim."""
    return {key: value for key, value in body.items() if key not in known}


def common_fields(body: Mapping[str, Any], *, hottest: float) -> dict[str, Any]:
    """What all dialects name alike. ``hottest``: the largest temperature."""
    return {
        "model": need_text(body, "model"),
        "temperature": take_number(body, "temperature", low=0, high=hottest),
        "top_p": take_number(body, "top_p", low=0, high=1),
        "stream": bool(take_bool(body, "stream")),
    }


def leave_out(request: ChatRequest, dropped: list[str], *, shared: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The fields beside of another dialect's request: those in ``shared`` are returned, the others listed.

    Raises ``BadRequest`` for one without which the answer would be another.
    """
    kept: dict[str, Any] = {}
    for key, value in request.extra.items():
        if not said(value) or _crosses_elsewhere(key, value, request):
            continue
        if key in shared:
            kept[key] = value
        elif key in _CHANGING:
            if value not in _CHANGING[key]:
                raise would_change(key)
        else:
            dropped.append(f"{key}: no such field")
    return kept


def _crosses_elsewhere(key: str, value: Any, request: ChatRequest) -> bool:
    """Whether nothing is lost with this field: it asks for nothing, or what it asks for has a field of its own."""
    if not isinstance(value, dict):
        return False
    if key == "stream_options":
        return not any(value.values())
    return key == "output_config" and request.response_format is not None and value.keys() == {"format"}


def would_change(field: str) -> BadRequest:
    """The refusal of a field that cannot be left out."""
    return BadRequest("this target has no such field, and the answer would be another", param=field)


def names_of(dropped: Iterable[str]) -> tuple[str, ...]:
    """The field names of a converter's notes (``field: why``), each once."""
    return tuple(dict.fromkeys(note.split(": ", 1)[0] for note in dropped))


def said(value: Any) -> bool:
    """A null, empty list or empty object in a request says nothing."""
    return value is not None and value != [] and value != {}


def choice_to_openai(choice: ToolChoice | None) -> Any:
    """Chat Completions' ``tool_choice``."""
    if choice is None:
        return None
    return {"type": "function", "function": {"name": choice.name}} if choice.kind == "tool" else choice.kind


def choice_from_openai(value: Any) -> ToolChoice | None:
    """The canonical choice of Chat Completions' ``tool_choice``; ``None`` for one that only OpenAI has."""
    if value in ("auto", "none", "required"):
        return ToolChoice(kind=value)
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return ToolChoice(kind="tool", name=name) if isinstance(name, str) else None


def with_fitting_ids(messages: tuple[Message, ...], rule: str) -> tuple[Message, ...]:
    """Messages whose tool-call ids a provider takes.

    An id always maps to the same one, so that the next turn of the session maps alike; the client keeps its own.
    """
    mapping = CallIdMap(ID_RULES[rule])
    out: list[Message] = []
    changed = False
    for message in messages:
        if message.tool_calls:
            calls = tuple(_with_id(call, mapping.to_wire(call.id)) for call in message.tool_calls)
            if any(new is not old for new, old in zip(calls, message.tool_calls, strict=True)):
                message, changed = msgspec.structs.replace(message, tool_calls=calls), True
        elif message.tool_call_id is not None:
            wire_id = mapping.to_wire(message.tool_call_id)
            if wire_id != message.tool_call_id:
                message, changed = msgspec.structs.replace(message, tool_call_id=wire_id), True
        out.append(message)
    return tuple(out) if changed else messages


def _with_id(call: ToolCall, wire_id: str) -> ToolCall:
    return call if wire_id == call.id else msgspec.structs.replace(call, id=wire_id)
