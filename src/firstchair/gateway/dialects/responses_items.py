"""Items of the Responses API ⇄ canonical messages.

What the model said in one turn comes as several items in a row (reasoning, messages, function calls) and is one
canonical message; everything else is put into the words of Chat Completions and read by its converter. A signature
of reasoning that Anthropic demands back travels as ``encrypted_content``, which clients must send back as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firstchair.chat.messages import (
    CallMark,
    ImagePart,
    Message,
    Part,
    RawPart,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from firstchair.chat.openai_wire import messages_from_openai, messages_to_openai
from firstchair.chat.wire_fields import Loss, check_results, need
from firstchair.core.errors import DataError

SIGNED = "anthropic-signature:"
REDACTED = "anthropic-redacted:"
"""Before what stands in ``encrypted_content`` of reasoning that Anthropic wrote."""

_OF_THE_MODEL = frozenset({"reasoning", "function_call"})
_BOOKKEEPING = frozenset({"id", "status", "type"})
"""Fields of items that say nothing to a model."""
_MESSAGE_KEYS = _BOOKKEEPING | {"role", "content"}
_CALL_KEYS = _BOOKKEEPING | {"call_id", "name", "arguments"}
_OUTPUT_KEYS = _BOOKKEEPING | {"call_id", "name", "output"}
_REASONING_KEYS = _BOOKKEEPING | {"summary", "content", "encrypted_content"}
_TEXTS = frozenset({"input_text", "output_text", "text"})


class ItemReader:
    """Reads ``input``. ``beside`` collects, by place, the fields that no message holds (``input[3].phase``)."""

    def __init__(self) -> None:
        self.beside: dict[str, Any] = {}
        self._messages: list[Message] = []
        self._places: list[str] = []
        self._turn: _Turn | None = None

    def read(self, items: Any, instructions: str | None) -> tuple[Message, ...]:
        """Canonical messages, ``instructions`` first. Raises ``DataError`` with the field."""
        if instructions:
            self._add(Message(role="system", content=(TextPart(text=instructions),)), "instructions")
        if isinstance(items, str):
            self._add(Message(role="user", content=(TextPart(text=items),) if items else ()), "input")
        elif items is not None:
            need(items, list, "input", "text or a list of items")
            for index, item in enumerate(items):
                self._item(item, f"input[{index}]")
        self._close()
        check_results(self._messages, places=self._places, result_field="call_id", call_field="call_id")
        return tuple(self._messages)

    def _add(self, message: Message, place: str) -> None:
        self._messages.append(message)
        self._places.append(place)

    def _close(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and not turn.silent:
            self._add(turn.message(), turn.place)

    def _item(self, item: Any, where: str) -> None:
        kind = item_kind(item, where)
        if kind in _OF_THE_MODEL or (kind == "message" and item["role"] == "assistant"):
            whole = kind == "message" and isinstance(item.get("content"), str)
            if self._turn is None or (whole and self._turn.spoke):
                self._close()
                self._turn = _Turn(where)
            self._turn.add(item, kind, where, self.beside)
            return
        self._close()
        if kind == "message":
            self._note(item, _MESSAGE_KEYS, where)
            row = {"role": item["role"], "content": _content_in(item.get("content"), f"{where}.content", self.beside)}
        else:
            self._note(item, _OUTPUT_KEYS, where)
            call_id = need(item.get("call_id"), str, f"{where}.call_id", "the id of the call")
            content = _content_in(item.get("output"), f"{where}.output", self.beside)
            row = {"role": "tool", "tool_call_id": call_id, "content": content}
            if isinstance(item.get("name"), str):
                row["name"] = item["name"]
        self._add(_message_of(row, where), where)

    def _note(self, item: Mapping[str, Any], known: frozenset[str], where: str) -> None:
        _note(item, known, where, self.beside)


def item_kind(item: Any, where: str) -> str:
    """The type of an item that we carry; raises ``DataError`` for others, by name."""
    need(item, dict, where, "an item, an object with a type")
    kind = item.get("type")
    role = item.get("role")
    if kind is None and role is not None:
        kind = "message"
    if kind == "message":
        if role not in ("user", "assistant", "system", "developer"):
            raise DataError(f"found {role!r}; expected user, assistant, system or developer", field=f"{where}.role")
        return "message"
    if kind in ("function_call", "function_call_output", "reasoning"):
        return str(kind)
    if kind == "item_reference" or (kind is None and "id" in item):
        raise DataError("a reference to a stored item; nothing is stored here, send the item itself", field=where)
    raise DataError(
        f"found {kind!r}; expected message, function_call, function_call_output or reasoning", field=f"{where}.type"
    )


class _Turn:
    """The items of one turn of the model, put together."""

    def __init__(self, place: str):
        self.place = place
        self.spoke = False
        self._parts: list[Part] = []
        self._calls: list[ToolCall] = []

    @property
    def silent(self) -> bool:
        """Nothing but reasoning that only its writer can read."""
        return not self._parts and not self.spoke

    def add(self, item: Mapping[str, Any], kind: str, where: str, beside: dict[str, Any]) -> None:
        if kind == "reasoning":
            _note(item, _REASONING_KEYS, where, beside)
            part = reasoning_in(item, where, beside)
            if part is not None:
                self._parts.append(part)
        elif kind == "function_call":
            _note(item, _CALL_KEYS, where, beside)
            self._parts.append(CallMark(index=len(self._calls)))
            self._calls.append(call_in(item, where))
        else:
            _note(item, _MESSAGE_KEYS, where, beside)
            self.spoke = True
            row = {"role": "assistant", "content": _content_in(item.get("content"), f"{where}.content", beside)}
            self._parts += _message_of(row, where).content

    def add_raw(self, item: Mapping[str, Any]) -> None:
        self._parts.append(RawPart(provider="openai", data=dict(item)))

    def message(self) -> Message:
        parts, seen_call, marked = self._parts, False, False
        for part in parts:
            seen_call = seen_call or isinstance(part, CallMark)
            marked = marked or (seen_call and not isinstance(part, CallMark))
        kept = parts if marked else [part for part in parts if not isinstance(part, CallMark)]
        return Message(role="assistant", content=tuple(kept), tool_calls=tuple(self._calls))


def answer_message(items: list[Any]) -> Message:
    """The message of a response's ``output``. Items of tools that run inside OpenAI are kept verbatim."""
    turn = _Turn("output")
    for index, item in enumerate(items):
        where = f"output[{index}]"
        need(item, dict, where, "an item, an object with a type")
        kind = item.get("type")
        if kind in _OF_THE_MODEL or kind == "message":
            turn.add(item, kind, where, {})
        else:
            turn.add_raw(item)
    return turn.message()


def _message_of(row: dict[str, Any], where: str) -> Message:
    try:
        message = messages_from_openai([row], strict=False)[0]
    except DataError as error:
        raise DataError(error.reason, field=(error.field or "").replace("messages[0]", where)) from None
    return message


def _note(item: Mapping[str, Any], known: frozenset[str], where: str, beside: dict[str, Any]) -> None:
    if not item.keys() <= known:
        beside |= {f"{where}.{key}": value for key, value in item.items() if key not in known and value}


def reasoning_in(item: Mapping[str, Any], where: str, beside: dict[str, Any]) -> Part | None:
    """The part of a reasoning item; ``None`` for one that holds nothing readable."""
    texts: list[str] = []
    for key in ("summary", "content"):
        for position, part in enumerate(need(item.get(key) or [], list, f"{where}.{key}", "a list of texts")):
            text = part.get("text") if isinstance(part, dict) else None
            texts.append(need(text, str, f"{where}.{key}[{position}].text", "text"))
    sealed = item.get("encrypted_content")
    need(sealed, str | None, f"{where}.encrypted_content", "text")  # type: ignore[arg-type]
    if sealed and sealed.startswith(REDACTED):
        return RawPart(provider="anthropic", data={"type": "redacted_thinking", "data": sealed[len(REDACTED) :]})
    signature = None
    if sealed and sealed.startswith(SIGNED):
        signature = sealed[len(SIGNED) :]
    elif sealed:
        beside[f"{where}.encrypted_content"] = sealed
    text = "\n\n".join(filter(None, texts))
    return ThinkingPart(text=text, signature=signature) if text or signature else None


def call_in(item: Mapping[str, Any], where: str) -> ToolCall:
    """The call of a ``function_call`` item; its arguments stay byte for byte."""
    return ToolCall(
        id=need(item.get("call_id"), str, f"{where}.call_id", "text"),
        name=need(item.get("name"), str, f"{where}.name", "text"),
        arguments=need(item.get("arguments"), str, f"{where}.arguments", "the JSON text of an object"),
    )


def _content_in(content: Any, where: str, beside: dict[str, Any]) -> Any:
    """Content as Chat Completions writes it."""
    if isinstance(content, str):
        return content
    parts = need(content, list, where, "text or a list of parts")
    return [_part_in(part, f"{where}[{position}]", beside) for position, part in enumerate(parts)]


def _part_in(part: Any, where: str, beside: dict[str, Any]) -> dict[str, Any]:
    need(part, dict, where, "a content part, an object with a type")
    kind = part.get("type")
    if kind in _TEXTS:
        _note(part, frozenset({"type", "text"}), where, beside)
        return {"type": "text", "text": need(part.get("text"), str, f"{where}.text", "text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": need(part.get("refusal"), str, f"{where}.refusal", "text")}
    if kind == "input_image":
        _note(part, frozenset({"type", "image_url", "detail", "file_id"}), where, beside)
        url = part.get("image_url")
        if not isinstance(url, str):
            raise DataError("expected an http(s) or data: URL; files are not stored here", field=f"{where}.image_url")
        detail = part.get("detail")
        # "auto" is what leaving it out means.
        image = {"url": url} if detail in (None, "auto") else {"url": url, "detail": detail}
        return {"type": "image_url", "image_url": image}
    if kind == "input_file":
        if not isinstance(part.get("file_data"), str):
            raise DataError("expected the file itself; files are not stored here", field=f"{where}.file_data")
        return {"type": "file", "file": {key: part[key] for key in ("filename", "file_data") if part.get(key)}}
    raise DataError(
        f"found {kind!r}; expected input_text, input_image, input_file, output_text or refusal", field=f"{where}.type"
    )


# --- canonical → items ------------------------------------------------------------------------------------------


def items_of_part(part: Part, message: Message) -> dict[str, Any] | None:
    """The output item of one part, without id and status; ``None`` for what this wire has no item for."""
    if isinstance(part, CallMark):
        call = message.tool_calls[part.index]
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    if isinstance(part, ThinkingPart):
        item: dict[str, Any] = {"type": "reasoning", "summary": [{"type": "summary_text", "text": part.text}]}
        return item | ({"encrypted_content": SIGNED + part.signature} if part.signature else {})
    if isinstance(part, TextPart):
        return {"type": "message", "role": "assistant", "content": [text_part(part.text)]}
    if isinstance(part, RawPart):
        return raw_item(part.provider, part.data)
    assert isinstance(part, ImagePart)
    return None


def raw_item(provider: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The item of a part that only one provider knows, where this wire can say it."""
    if provider == "anthropic" and data.get("type") == "redacted_thinking":
        return {"type": "reasoning", "summary": [], "encrypted_content": REDACTED + str(data.get("data"))}
    if provider == "openai" and data.get("type") == "refusal":
        return refusal_item(str(data.get("refusal")))
    return None


def refusal_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": text}]}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def placed(message: Message) -> list[Part]:
    """The content with a mark for every call, where they stand."""
    parts = list(message.content)
    if not any(isinstance(part, CallMark) for part in parts):
        parts += [CallMark(index=index) for index in range(len(message.tool_calls))]
    return parts


def instructions_of(messages: tuple[Message, ...], dropped: list[str]) -> str | None:
    """System messages as one text; what only a message can hold is listed."""
    for index, row in enumerate(messages_to_openai(messages, dropped=dropped)):
        where = f"messages[{index}]"
        dropped += [f"{where}.{key}: instructions are text" for key in row if key not in ("role", "content")]
        for position, part in enumerate(row["content"] if isinstance(row["content"], list) else ()):
            spot = f"{where}.content[{position}]"
            if part["type"] != "text":
                raise DataError(f"a part of type {part['type']!r}; instructions are text", field=spot)
            _list_rest(part, ("type", "text"), spot, dropped)
    return "\n\n".join(message.text for message in messages) or None


def _list_rest(row: Mapping[str, Any], known: tuple[str, ...], where: str, dropped: list[str]) -> None:
    dropped += [f"{where}.{key}: no such field" for key, value in row.items() if key not in known and value]


def input_items(messages: tuple[Message, ...], dropped: list[str]) -> Iterator[dict[str, Any]]:
    """``input`` for a server that speaks this wire. Reasoning is not sent: it takes back only what it sealed."""
    for index, message in enumerate(messages):
        where = f"input[{index}]"
        if message.role == "assistant":
            yield from _assistant_items(message, dropped, where)
            continue
        lost: list[str] = []
        (row,) = messages_to_openai([message], dropped=lost)
        dropped += [note.replace("messages[0]", where, 1) for note in lost]
        content = row["content"]
        if not isinstance(content, str):
            content = [_input_part(part, f"{where}.content[{at}]", dropped) for at, part in enumerate(content)]
        if message.role == "tool":
            yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": content}
        else:
            yield {"type": "message", "role": row["role"], "content": content}


def _assistant_items(message: Message, dropped: list[str], where: str) -> Iterator[dict[str, Any]]:
    loss = Loss(dropped)
    for part in placed(message):
        if isinstance(part, ThinkingPart):
            dropped.append(f"{where}.reasoning: only what this server sealed can go back")
            continue
        item = items_of_part(part, message)
        beside = message.tool_calls[part.index].extra if isinstance(part, CallMark) else getattr(part, "extra", {})
        loss.extras(beside, "anthropic", f"{where}.content")
        loss.extras(beside, "openai", f"{where}.content")
        if item is None or item["type"] == "reasoning":
            dropped.append(f"{where}.content: no item for such a part")
        elif isinstance(part, TextPart):
            yield {"type": "message", "role": "assistant", "content": part.text}
        else:
            yield item


def _input_part(part: Mapping[str, Any], where: str, dropped: list[str]) -> dict[str, Any]:
    _list_rest(part, ("type", part["type"]), where, dropped)
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        image = part["image_url"]
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
    if part["type"] == "file":
        return {"type": "input_file", **part["file"]}
    raise DataError(f"a part of type {part['type']!r} has no counterpart on this wire", field="input")
