"""OpenAI Chat Completions messages and tools ⇄ canonical ones, without loss.

``messages_to_openai(messages_from_openai(rows)) == rows`` for every message a harness can send: null, empty and
absent content, content as a list, names, refusals, audio, unknown parts and unknown fields. What only this wire
knows is kept under ``extra["openai"]``; a failed tool call is told by the prefix of ``tool_error``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
)
from firstchair.chat.openai_calls import call_from_openai, call_to_openai
from firstchair.chat.tool_error import PREFIX, mark_error, read_error
from firstchair.chat.wire_fields import Loss, check_results, kind_of, need, rest
from firstchair.core.errors import DataError

ToolImages = Literal["pass", "user", "refuse"]
"""Images in tool results: left in the tool message, moved to a user message after it, or refused."""

ReasoningKey = Literal["reasoning_content", "reasoning", "both"]
"""Where reasoning stands: DeepSeek and older vLLM read ``reasoning_content``, vLLM 0.32 only ``reasoning``."""
_REASONING_KEYS = ("reasoning_content", "reasoning")

_ROLES: Mapping[str, Any] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_PLAIN = frozenset({"role", "content"})
_KNOWN = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"})
_TEXT_KEYS = frozenset({"type", "text"})


def messages_from_openai(rows: Sequence[Mapping[str, Any]], *, strict: bool = True) -> tuple[Message, ...]:
    """Canonical messages. Raises ``DataError`` with the field, such as ``messages[3].tool_calls[0].id``.

    ``strict`` also refuses tool results that answer no call.
    """
    need(rows, list | tuple, "messages", "a list of messages")  # type: ignore[arg-type]
    messages = tuple(_message_in(row, index) for index, row in enumerate(rows))
    if strict:
        check_results(messages)
    return messages


def _message_in(row: Any, index: int) -> Message:
    where = f"messages[{index}]"
    need(row, dict, where, "an object with role and content")
    named = row.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise DataError(f"found {row.get('role')!r}; expected one of {', '.join(_ROLES)}", field=f"{where}.role")
    content = row.get("content")
    if row.keys() == _PLAIN and content.__class__ is str and role != "tool" and row["role"] != "developer":
        # Most messages of most recordings.
        return Message(role=role, content=(TextPart(text=content),) if content else ())
    own = rest(row, _KNOWN)
    if own.get("function_call") is not None:
        raise DataError("the old function_call form; write it as tool_calls", field=f"{where}.function_call")
    if row["role"] == "developer":
        own["role"] = "developer"
    calls = _calls_in(row, where, own)
    parts, is_error = _content_in(row, role, bool(calls), where, own)
    parts = _reasoning_in(row, where, own) + parts
    call_id = row.get("tool_call_id")
    if role == "tool":
        need(call_id, str, f"{where}.tool_call_id", "the id of the call that this is the result of")
    elif "tool_call_id" in row:
        raise DataError(f"a {role} message answers no call; expected no such field", field=f"{where}.tool_call_id")
    name = row.get("name")
    if "name" in row and not isinstance(name, str):
        own["name"] = need(name, type(None), f"{where}.name", "text")
    return Message(
        role=role,
        content=parts,
        tool_calls=calls,
        tool_call_id=call_id,
        name=name,
        is_error=is_error,
        extra={"openai": own} if own else {},
    )


def _calls_in(row: Mapping[str, Any], where: str, own: dict[str, Any]) -> tuple[ToolCall, ...]:
    if "tool_calls" not in row:
        return ()
    rows = row["tool_calls"]
    if not rows and (rows is None or isinstance(rows, list)):
        own["tool_calls"] = rows
        return ()
    if row["role"] != "assistant":
        raise DataError(f"a {row['role']} message makes no calls", field=f"{where}.tool_calls")
    need(rows, list, f"{where}.tool_calls", "a list of calls")
    return tuple(call_from_openai(item, f"{where}.tool_calls[{position}]") for position, item in enumerate(rows))


def _reasoning_in(row: Mapping[str, Any], where: str, own: dict[str, Any]) -> tuple[Part, ...]:
    """The reasoning of an assistant row. Anything else under its two names is kept verbatim."""
    keys = [key for key in _REASONING_KEYS if key in row]
    if not keys:
        return ()
    values = [row[key] for key in keys]
    if row["role"] != "assistant" or not any(values):
        own |= {key: row[key] for key in keys}
        return ()
    if len(keys) == 2 and values[0] == values[1]:
        key, text = "both", values[0]
    else:
        key = next(name for name in keys if row[name])
        text = row[key]
        own |= {name: row[name] for name in keys if name != key}
    need(text, str, f"{where}.{keys[0] if key == 'both' else key}", "text")
    return (ThinkingPart(text=text, extra={} if key == "reasoning_content" else {"openai": {"key": key}}),)


def _content_in(
    row: Mapping[str, Any], role: str, has_calls: bool, where: str, own: dict[str, Any]
) -> tuple[tuple[Part, ...], bool]:
    """Parts and error flag; the form of the content is noted in ``own`` when it is not the usual one."""
    content = row.get("content")
    if isinstance(content, str):
        text, is_error = read_error(content) if role == "tool" else (content, False)
        if not text and has_calls:
            own["content"] = "string"
        return ((TextPart(text=text),) if text else ()), is_error
    if content is None:
        form = "null" if "content" in row else "absent"
        if form != ("null" if has_calls else "string"):
            own["content"] = form
        return (), False
    need(content, list, f"{where}.content", "text, a list of parts, or null")
    parts = [_part_in(part, f"{where}.content[{position}]") for position, part in enumerate(content)]
    is_error = False
    if role == "tool" and parts and isinstance(parts[0], TextPart):
        first = parts[0]
        text, is_error = read_error(first.text)
        if is_error and not text and not first.extra:
            parts = parts[1:]
        elif text != first.text:
            parts[0] = TextPart(text=text, extra=first.extra)
    if _usual_form(tuple(parts), has_calls) != "parts":
        own["content"] = "parts"
    return tuple(parts), is_error


def _part_in(part: Any, where: str) -> Part:
    need(part, dict, where, "a content part, an object with a type")
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        own = rest(part, _TEXT_KEYS)
        return TextPart(text=part["text"], extra={"openai": own} if own else {})
    image = part.get("image_url")
    if kind == "image_url" and isinstance(image, dict) and isinstance(image.get("url"), str):
        own = rest(part, frozenset({"type", "image_url"}))
        inner = rest(image, frozenset({"url"}))
        if inner:
            own["image_url"] = inner
        return ImagePart(url=image["url"], extra={"openai": own} if own else {})
    if not isinstance(kind, str):
        raise DataError(f"found {kind_of(kind)}; expected the name of a part type", field=f"{where}.type")
    return RawPart(provider="openai", data=dict(part))


def _usual_form(parts: tuple[Part, ...], has_calls: bool) -> str:
    """How content of these parts is written when nothing says otherwise."""
    if not parts:
        return "null" if has_calls else "string"
    first = parts[0]
    if len(parts) == 1 and isinstance(first, TextPart) and first.text and not first.extra.get("openai"):
        return "string"
    return "parts"


def messages_to_openai(
    messages: Sequence[Message],
    *,
    dropped: list[str] | None = None,
    tool_images: ToolImages = "pass",
    reasoning_key: ReasoningKey = "reasoning_content",
) -> list[dict[str, Any]]:
    """OpenAI messages. What this wire cannot carry is appended to ``dropped``, or raises without it.

    Not carried: Anthropic's cache marks, signatures, redacted reasoning and unknown blocks, and the place of
    calls among text. Reasoning is carried under ``reasoning_key``, unless it came under another name. Raises
    ``DataError`` with the field.
    """
    loss = Loss(dropped)
    rows: list[dict[str, Any]] = []
    moved: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if moved and message.role != "tool":
            rows.append({"role": "user", "content": moved})
            moved = []
        if message.role == "tool" and tool_images != "pass":
            message, images = _without_images(message, tool_images, f"messages[{index}]")
            moved.extend(images)
        rows.append(_message_out(message, loss, f"messages[{index}]", reasoning_key))
    if moved:
        rows.append({"role": "user", "content": moved})
    return rows


def _without_images(message: Message, tool_images: ToolImages, where: str) -> tuple[Message, list[dict[str, Any]]]:
    """A tool message with a text reference in the place of each image, and the images as user content."""
    parts: list[Part] = []
    images: list[dict[str, Any]] = []
    for position, part in enumerate(message.content):
        if not isinstance(part, ImagePart):
            parts.append(part)
            continue
        if tool_images == "refuse":
            raise DataError(
                "an image in a tool result, which this target refuses", field=f"{where}.content[{position}]"
            )
        name = f"[image {len(images) // 2 + 1} of tool result {message.tool_call_id}]"
        parts.append(TextPart(text=name))
        images.append({"type": "text", "text": name})
        images.append(_part_out(part, Loss([]), where))
    if not images:
        return message, []
    return (
        Message(
            role="tool",
            content=tuple(parts),
            tool_call_id=message.tool_call_id,
            name=message.name,
            is_error=message.is_error,
            extra=message.extra,
        ),
        images,
    )


def _message_out(
    message: Message, loss: Loss, where: str, reasoning_key: ReasoningKey = "reasoning_content"
) -> dict[str, Any]:
    content = message.content
    if not message.extra and not message.tool_calls and message.role != "tool" and message.name is None:
        if not content:
            return {"role": message.role, "content": ""}
        only = content[0]
        if len(content) == 1 and only.__class__ is TextPart and only.text and not only.extra:
            return {"role": message.role, "content": only.text}
    own = message.extra.get("openai", {})
    row: dict[str, Any] = {"role": own.get("role", message.role)}
    _write_content(message, own, loss, where, row)
    if message.thinking:
        key = _reasoning_key(message, reasoning_key)
        row |= dict.fromkeys(_REASONING_KEYS if key == "both" else (key,), message.thinking)
    if message.name is not None:
        row["name"] = message.name
    if message.tool_calls:
        row["tool_calls"] = [
            call_to_openai(call, loss, f"{where}.tool_calls[{position}]")
            for position, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    for key, value in own.items():
        if key not in ("content", "role"):
            row[key] = value
    loss.extras(message.extra, "anthropic", where)
    return row


def _reasoning_key(message: Message, usual: str) -> str:
    for part in message.content:
        if isinstance(part, ThinkingPart):
            return str(part.extra.get("openai", {}).get("key", usual))
    return usual


def _write_content(message: Message, own: Mapping[str, Any], loss: Loss, where: str, row: dict[str, Any]) -> None:
    parts = _visible_parts(message, loss, where)
    form = _form(message, parts, own.get("content"))
    if form == "null":
        row["content"] = None
    elif form == "string":
        text = ""
        for part in parts:
            assert isinstance(part, TextPart)
            text = part.text
            loss.extras(part.extra, "anthropic", f"{where}.content[0]")
        row["content"] = mark_error(text, message.is_error) if message.role == "tool" else text
    elif form == "parts":
        row["content"] = _parts_out(message, parts, loss, where)


def _form(message: Message, parts: tuple[Part, ...], noted: str | None) -> str:
    """How the content is written; a note that no longer fits the parts is passed over."""
    usual = _usual_form(parts, bool(message.tool_calls))
    form = noted or usual
    if parts and form != "parts":
        return usual
    return "string" if message.is_error and form in ("null", "absent") else form


def _visible_parts(message: Message, loss: Loss, where: str) -> tuple[Part, ...]:
    """The parts that stand in this wire's content."""
    visible: list[Part] = []
    for position, part in enumerate(message.content):
        field = f"{where}.content[{position}]"
        if isinstance(part, ThinkingPart):
            if part.signature:
                loss.note(f"{field}.signature", "a reasoning signature exists only on the anthropic wire")
            loss.extras(part.extra, "anthropic", field)
            if visible:
                loss.note(field, "reasoning after text; its place among the content cannot be told")
        elif isinstance(part, CallMark):
            if any(isinstance(later, TextPart | ImagePart) for later in message.content[position + 1 :]):
                loss.note(field, "content after a call; the place of calls among the content cannot be told")
        elif isinstance(part, RawPart) and part.provider != "openai":
            loss.note(field, f"a part of type {part.data.get('type')!r} exists only on the {part.provider} wire")
        else:
            visible.append(part)
    return tuple(visible)


def _parts_out(message: Message, parts: tuple[Part, ...], loss: Loss, where: str) -> list[dict[str, Any]]:
    out = [_part_out(part, loss, f"{where}.content[{position}]") for position, part in enumerate(parts)]
    if message.role != "tool":
        return out
    first = parts[0] if parts else None
    if isinstance(first, TextPart) and (first.text or first.extra.get("openai") or not message.is_error):
        out[0]["text"] = mark_error(first.text, message.is_error)
    elif message.is_error:
        out.insert(0, {"type": "text", "text": PREFIX})
    return out


def _part_out(part: Part, loss: Loss, where: str) -> dict[str, Any]:
    if isinstance(part, RawPart):
        return dict(part.data)
    assert isinstance(part, TextPart | ImagePart)
    loss.extras(part.extra, "anthropic", where)
    own = part.extra.get("openai", {})
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, **own}
    if not part.url.startswith(("http://", "https://", "data:")):
        loss.note(where, "a provider's file id means nothing to another provider")
    inner = own.get("image_url", {})
    outer = {key: value for key, value in own.items() if key != "image_url"}
    return {"type": "image_url", "image_url": {"url": part.url, **inner}, **outer}


_FUNCTION_KEYS = frozenset({"name", "description", "parameters"})


def tools_from_openai(rows: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Canonical tools. A tool of another type (``custom``, a hosted tool) is kept whole under ``extra``.

    Raises ``DataError`` with the field, such as ``tools[2].function.name``.
    """
    need(rows, list | tuple, "tools", "a list of tools")  # type: ignore[arg-type]
    return tuple(_tool_in(row, f"tools[{index}]") for index, row in enumerate(rows))


def _tool_in(row: Any, where: str) -> Tool:
    need(row, dict, where, "an object with type and function")
    kind = row.get("type")
    if kind != "function":
        need(kind, str, f"{where}.type", "'function'")
        body = row.get(kind)
        name = body.get("name") if isinstance(body, dict) else row.get("name")
        return Tool(name=name if isinstance(name, str) else kind, extra={"openai_whole": dict(row)})
    function = need(row.get("function"), dict, f"{where}.function", "an object with name and parameters")
    name = need(function.get("name"), str, f"{where}.function.name", "text")
    own: dict[str, Any] = rest(function, _FUNCTION_KEYS)
    description, parameters = function.get("description"), function.get("parameters")
    if "description" in function and not isinstance(description, str):
        own["description"] = need(description, type(None), f"{where}.function.description", "text")
    if "parameters" in function and not parameters:
        own["parameters"] = parameters
    if parameters is not None:
        need(parameters, dict, f"{where}.function.parameters", "a JSON Schema object")
    extra: dict[str, Any] = {"openai": own} if own else {}
    outer = rest(row, frozenset({"type", "function"}))
    if outer:
        extra["openai_outer"] = outer
    return Tool(name=name, description=description, parameters=parameters or {}, extra=extra)


def tools_to_openai(tools: Sequence[Tool], *, dropped: list[str] | None = None) -> list[dict[str, Any]]:
    """OpenAI tools. A tool without description has no such key. What cannot be carried goes to ``dropped``.

    Raises ``DataError`` for another provider's hosted tool.
    """
    loss = Loss(dropped)
    rows: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        own, foreign = tool.extra.get("openai", {}), tool.extra.get("anthropic", {})
        if "openai_whole" in tool.extra:
            rows.append(tool.extra["openai_whole"])
            continue
        if "anthropic_whole" in tool.extra:
            kind = tool.extra["anthropic_whole"].get("type")
            raise DataError(f"{kind!r} is a tool that only Anthropic hosts", field=where)
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None or "description" in own:
            function["description"] = tool.description
        if tool.parameters or "parameters" in own:
            function["parameters"] = tool.parameters
        function |= own
        if "strict" in foreign:
            function.setdefault("strict", foreign["strict"])
        loss.extras(tool.extra, "anthropic", where, carried=("strict", "type"))
        rows.append({"type": "function", "function": function, **tool.extra.get("openai_outer", {})})
    return rows


def message_from_openai_response(response: Mapping[str, Any], choice: int = 0) -> Message:
    """The message of one choice of a ``chat.completion``. Null fields mean nothing there and are left out.

    Raises ``DataError`` with the field.
    """
    need(response, dict, "response", "a chat.completion object")
    choices = need(response.get("choices"), list, "choices", "a list of choices")
    if choice >= len(choices):
        raise DataError(f"found {len(choices)} choices; expected at least {choice + 1}", field="choices")
    row = need(choices[choice], dict, f"choices[{choice}]", "an object with a message")
    message = need(row.get("message"), dict, f"choices[{choice}].message", "an assistant message")
    # `content` alone keeps its null: with calls that is the usual form.
    kept = {key: value for key, value in message.items() if value not in (None, []) or key == "content"}
    try:
        return _message_in(kept, 0)
    except DataError as error:
        field = (error.field or "").replace("messages[0]", f"choices[{choice}].message")
        raise DataError(error.reason, field=field) from None


def message_to_openai_response(
    message: Message,
    *,
    model: str,
    response_id: str,
    created: int,
    finish_reason: str,
    usage: Mapping[str, Any],
    dropped: list[str] | None = None,
) -> dict[str, Any]:
    """A ``chat.completion`` with one choice. ``created`` is in seconds since 1970."""
    row = _message_out(message, Loss(dropped), "message")
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {"index": 0, "message": {"refusal": None, **row}, "logprobs": None, "finish_reason": finish_reason}
        ],
        "usage": dict(usage),
    }
