"""Provider-neutral messages: the one message type of the whole product.

Importers produce them, everything else reads only them. What a provider sends and we have no word for is kept
verbatim (``RawPart``, ``extra``), so that converting there and back loses nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from firstchair.core.jsontext import JsonProblem, dumps, loads

Role = Literal["system", "user", "assistant", "tool"]


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Frozen; fields that hold their default are left out of JSON."""


class TextPart(_Record, frozen=True, tag_field="type", tag="text"):
    """Visible text."""

    text: str
    extra: dict[str, Any] = {}
    """Provider fields beside the text, verbatim (``cache_control``, ``citations``)."""


class ThinkingPart(_Record, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning that the user does not see."""

    text: str
    signature: str | None = None
    """The provider's opaque proof, kept verbatim; never shown to a model of ours."""
    extra: dict[str, Any] = {}


class ImagePart(_Record, frozen=True, tag_field="type", tag="image"):
    """An image by reference: an ``https:`` or ``data:`` URL, or a provider's file id."""

    url: str
    media_type: str | None = None
    extra: dict[str, Any] = {}


class RawPart(_Record, frozen=True, tag_field="type", tag="raw"):
    """A provider's part that we do not know, kept verbatim."""

    provider: Literal["openai", "anthropic", "other"]
    data: dict[str, Any]


class CallMark(_Record, frozen=True, tag_field="type", tag="call"):
    """The place of ``tool_calls[index]`` among the content parts.

    Only written when a provider puts content after a call; without marks all calls follow all content.
    """

    index: int


Part = TextPart | ThinkingPart | ImagePart | RawPart | CallMark


class ToolCall(_Record, frozen=True):
    """One call that the model asks for."""

    id: str
    name: str
    arguments: str = "{}"
    """JSON text byte for byte as the model wrote it; not an object, or not JSON at all, when malformed."""
    extra: dict[str, Any] = {}

    def parsed(self) -> dict[str, Any] | None:
        """The arguments as an object, or ``None`` when they are malformed (strict JSON, object only)."""
        try:
            value = loads(self.arguments)
        except JsonProblem:
            return None
        return value if isinstance(value, dict) else None

    @classmethod
    def of(cls, call_id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
        """A call with ``arguments`` written as models see them (``json.dumps`` spacing)."""
        return cls(id=call_id, name=name, arguments=dumps(arguments))


class Message(_Record, frozen=True):
    """One message of a conversation."""

    role: Role
    content: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    """Assistant only; the order of parallel calls is kept."""
    tool_call_id: str | None = None
    """Tool only: which call this is the result of."""
    name: str | None = None
    is_error: bool = False
    """Tool only: the call failed."""
    extra: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The visible text, parts joined without a separator."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def thinking(self) -> str:
        """The reasoning text, parts joined without a separator."""
        return "".join(part.text for part in self.content if isinstance(part, ThinkingPart))


class Tool(_Record, frozen=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = {}
    """JSON Schema of the arguments, key order as received."""
    extra: dict[str, Any] = {}
    """Provider fields beside the schema, verbatim (``strict``, ``cache_control``)."""


TRUNCATED = "truncated"
REFUSED = "refused"
UNFINISHED = "unfinished"
ENDINGS = (TRUNCATED, REFUSED, UNFINISHED)
"""Keys in ``Message.extra``, true on an assistant message that is not what the model meant to say: the token limit
cut it, the provider's filter stopped it, or it ended in another way that is no stop (an error, a pause)."""


def ending(message: Message) -> str | None:
    """Which of ``ENDINGS`` a message is marked with; ``None`` for one that the model ended itself."""
    return next((mark for mark in ENDINGS if message.extra.get(mark) is True), None) if message.extra else None


def text_message(role: Role, text: str, **fields: Any) -> Message:
    """A message of one text part (of none when ``text`` is empty)."""
    return Message(role=role, content=(TextPart(text=text),) if text else (), **fields)


def assistant_message(text: str = "", *, thinking: str = "", calls: tuple[ToolCall, ...] = ()) -> Message:
    """An assistant message: reasoning, then text, then calls."""
    parts: tuple[Part, ...] = (ThinkingPart(text=thinking),) if thinking else ()
    if text:
        parts += (TextPart(text=text),)
    return Message(role="assistant", content=parts, tool_calls=calls)


def tool_result(call: ToolCall, text: str, *, is_error: bool = False) -> Message:
    """The result of ``call`` as a tool message."""
    return text_message("tool", text, tool_call_id=call.id, name=call.name, is_error=is_error)
