"""One content block of the Anthropic wire ⇄ canonical parts, calls and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from firstchair.chat.messages import CallMark, ImagePart, Message, Part, RawPart, TextPart, ThinkingPart, ToolCall
from firstchair.chat.wire_fields import Loss, need, rest
from firstchair.core.errors import DataError
from firstchair.core.jsontext import JsonProblem, dumps, loads

MissingResult = Literal["refuse", "insert"]

MALFORMED_KEY = "__malformed_arguments__"
"""The only key of an input that carries arguments which are not a JSON object, as text."""
FILE_PREFIX = "anthropic-file:"
"""Before a file id in ``ImagePart.url``."""

_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
_TEXT_KEYS = frozenset({"type", "text"})
_THINKING_KEYS = frozenset({"type", "thinking", "signature"})
_CALL_KEYS = frozenset({"type", "id", "name", "input"})
_RESULT_KEYS = frozenset({"type", "tool_use_id", "content", "is_error"})


def carried_text(value: Mapping[str, Any]) -> str | None:
    """The malformed arguments that ``value`` carries as text; ``None`` when it carries none."""
    text = value.get(MALFORMED_KEY)
    return text if len(value) == 1 and isinstance(text, str) else None


def _extra(own: Mapping[str, Any]) -> dict[str, Any]:
    return {"anthropic": dict(own)} if own else {}


def plain_text(parts: Sequence[Part]) -> TextPart | None:
    """The part, when content is one text that needs no block of its own (no cache mark, no citations)."""
    only = parts[0] if len(parts) == 1 else None
    if not isinstance(only, TextPart) or not only.text or only.extra.get("anthropic"):
        return None
    return None if "cache_control" in only.extra.get("openai", {}) else only


def content_form(content: Any, parts: Sequence[Part], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` with the note that content stood as a list where text is usual: one plain text, or nothing."""
    if not isinstance(content, str) and (not parts or plain_text(parts) is not None):
        return {**own, "content": "blocks"}
    return dict(own)


def parts_in(blocks: Any, where: str) -> tuple[Part, ...]:
    """Canonical parts of a list of blocks without calls and results."""
    parts: list[Part] = []
    for position, block in enumerate(blocks):
        need(block, dict, f"{where}[{position}]", "a content block, an object with a type")
        parts.append(part_in(block, f"{where}[{position}]"))
    return tuple(parts)


def part_in(block: Mapping[str, Any], where: str) -> Part:
    """The canonical part of one block; a block that we do not know is kept verbatim."""
    kind = need(block.get("type"), str, f"{where}.type", "the name of a block type")
    if kind == "text" and isinstance(block.get("text"), str):
        return TextPart(text=block["text"], extra=_extra(rest(block, _TEXT_KEYS)))
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        signature = block.get("signature")
        own = rest(block, _THINKING_KEYS)
        if not isinstance(signature, str | None) or ("signature" in block and signature is None):
            raise DataError("expected the signature's text", field=f"{where}.signature")
        return ThinkingPart(text=block["thinking"], signature=signature, extra=_extra(own))
    if kind == "image" and isinstance(block.get("source"), dict):
        image = _image_in(block["source"], rest(block, frozenset({"type", "source"})))
        if image is not None:
            return image
    return RawPart(provider="anthropic", data=dict(block))


def _image_in(source: Mapping[str, Any], own: Mapping[str, Any]) -> ImagePart | None:
    """An image whose source is exactly of a known form."""
    kind = source.get("type")
    texts = all(isinstance(value, str) for value in source.values())
    if kind == "base64" and source.keys() == {"type", "media_type", "data"} and texts:
        if ";" in source["media_type"] or "," in source["media_type"]:
            return None
        url = f"data:{source['media_type']};base64,{source['data']}"
        return ImagePart(url=url, media_type=source["media_type"], extra=_extra(own))
    if kind == "url" and source.keys() == {"type", "url"} and texts and source["url"].startswith(("http:", "https:")):
        return ImagePart(url=source["url"], extra=_extra(own))
    if kind == "file" and source.keys() == {"type", "file_id"} and texts:
        return ImagePart(url=FILE_PREFIX + source["file_id"], extra=_extra(own))
    return None


def block_out(part: Part, loss: Loss, where: str) -> dict[str, Any]:
    """The block of one part that this wire can carry (``CallMark`` is the caller's)."""
    if isinstance(part, RawPart):
        if part.provider != "anthropic":
            raise DataError(f"a part of type {part.data.get('type')!r} that only {part.provider} knows", field=where)
        return dict(part.data)
    assert not isinstance(part, CallMark)
    loss.extras(part.extra, "openai", where, carried=("cache_control", "image_url"))
    own = dict(part.extra.get("anthropic", {}))
    foreign = part.extra.get("openai", {})
    if "cache_control" in foreign:
        own.setdefault("cache_control", foreign["cache_control"])
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, **own}
    if isinstance(part, ThinkingPart):
        block = {"type": "thinking", "thinking": part.text}
        return {**block, **({} if part.signature is None else {"signature": part.signature}), **own}
    for key, value in foreign.get("image_url", {}).items():
        if value is not None:
            loss.note(f"{where}.image_url.{key}", "this wire has no such setting of an image")
    return {"type": "image", "source": _source_out(part, where), **own}


def _source_out(part: ImagePart, where: str) -> dict[str, Any]:
    if part.url.startswith(FILE_PREFIX):
        return {"type": "file", "file_id": part.url[len(FILE_PREFIX) :]}
    if part.url.startswith(("http:", "https:")):
        return {"type": "url", "url": part.url}
    match = _DATA_URL.fullmatch(part.url)
    if match is None or not match[1]:
        raise DataError(
            f"image at {part.url[:40]!r}; expected an http(s) URL or data:<media type>;base64,…", field=where
        )
    return {"type": "base64", "media_type": match[1], "data": match[2]}


def call_in(block: Mapping[str, Any], where: str) -> ToolCall:
    """The canonical call of a ``tool_use`` block; its input is written as JSON text in the order received."""
    call_id = need(block.get("id"), str, f"{where}.id", "text")
    name = need(block.get("name"), str, f"{where}.name", "text")
    value = need(block.get("input"), dict, f"{where}.input", "an object")
    extra = _extra(rest(block, _CALL_KEYS))
    if (text := carried_text(value)) is not None:
        return ToolCall(id=call_id, name=name, arguments=text, extra=extra)
    try:
        return ToolCall(id=call_id, name=name, arguments=dumps(value), extra=extra)
    except (TypeError, ValueError) as error:
        raise DataError(f"not JSON: {error}", field=f"{where}.input") from None


def call_out(call: ToolCall, malformed: str, loss: Loss, where: str) -> dict[str, Any]:
    """The ``tool_use`` block of a call. Empty argument text is an empty object; other malformed text follows
    the rule of ``malformed``.
    """
    foreign = call.extra.get("openai", {})
    loss.extras(call.extra, "openai", where, carried=("type", "outer"))
    loss.extras({"openai": foreign.get("outer", {})}, "openai", where, carried=("index",))
    own = call.extra.get("anthropic", {})
    value = call.parsed()
    if value is None and not call.arguments.strip():
        value = {}
    if value is None:
        if malformed == "refuse":
            raise DataError(
                f"arguments are not a JSON object ({_why(call.arguments)}); pass malformed='carry' to send the text",
                field=f"{where}.arguments",
            )
        value = {MALFORMED_KEY: call.arguments}
    elif value.keys() == {MALFORMED_KEY}:
        raise DataError(f"the argument name {MALFORMED_KEY!r} is reserved", field=f"{where}.arguments")
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": value, **own}


def _why(arguments: str) -> str:
    try:
        value = loads(arguments)
    except JsonProblem as error:
        return str(error)
    return f"found {type(value).__name__}"


def result_in(block: Mapping[str, Any], where: str, turn: Mapping[str, Any]) -> Message:
    """The tool message of a ``tool_result`` block; ``turn`` is noted with it."""
    call_id = need(block.get("tool_use_id"), str, f"{where}.tool_use_id", "the id of the call")
    content, own = block.get("content"), rest(block, _RESULT_KEYS)
    if isinstance(content, str):
        parts: tuple[Part, ...] = (TextPart(text=content),) if content else ()
        if not content:
            own["content"] = "string"
    elif content is None:
        parts = ()
        if "content" in block:
            own["content"] = "null"
    else:
        need(content, list, f"{where}.content", "text or a list of blocks")
        parts = parts_in(content, f"{where}.content")
        own = content_form(content, parts, own)
    is_error = block.get("is_error")
    if "is_error" in block and not isinstance(is_error, bool):
        own["is_error"] = need(is_error, type(None), f"{where}.is_error", "true or false")
    elif is_error is False:
        own["is_error"] = False
    return Message(
        role="tool", content=parts, tool_call_id=call_id, is_error=bool(is_error), extra=_extra(own) | dict(turn)
    )


def result_out(message: Message, loss: Loss, where: str) -> dict[str, Any]:
    """The ``tool_result`` block of a tool message; its ``name`` follows from the call and is not written."""
    loss.extras(message.extra, "openai", where, carried=("tool_calls",))
    own = message.extra.get("anthropic", {})
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    parts, noted = message.content, own.get("content")
    only = plain_text(parts)
    if only is not None and noted != "blocks":
        block["content"] = only.text
        loss.extras(only.extra, "openai", f"{where}.content[0]")
    elif parts or noted == "blocks":
        block["content"] = [
            block_out(part, loss, f"{where}.content[{position}]") for position, part in enumerate(parts)
        ]
    elif noted == "string":
        block["content"] = ""
    elif noted == "null":
        block["content"] = None
    if message.is_error:
        block["is_error"] = True
    elif "is_error" in own:
        block["is_error"] = own["is_error"]
    fields = {key: value for key, value in own.items() if key not in ("content", "is_error")}
    return block | fields
