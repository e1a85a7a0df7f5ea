"""The requests that a scripted model accepts, in two dialects: what it honours, what it ignores, what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from firstchair.chat.anthropic_wire import messages_from_anthropic, tools_from_anthropic
from firstchair.chat.messages import Message, Tool
from firstchair.chat.openai_wire import messages_from_openai, tools_from_openai
from firstchair.core.errors import BadRequest, DataError

BYTES_PER_TOKEN = 4
"""There is no tokenizer here; usage is estimated from UTF-8 bytes, and the same for equal requests."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's ``stream_options``."""

    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """OpenAI Chat Completions. The sampling fields are accepted and have no effect: the model is a program."""

    model: str
    messages: msgspec.Raw
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: Any = None
    response_format: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    user: str | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class MessagesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Anthropic Messages. The sampling fields are accepted and have no effect."""

    model: str
    max_tokens: int
    messages: msgspec.Raw
    system: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    tool_choice: Any = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Any = None
    service_tier: str | None = None
    cache_control: Any = None
    output_config: Any = None


@dataclass(frozen=True)
class Ask:
    """One request, dialect aside."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    max_tokens: int | None
    stream: bool
    include_usage: bool
    input_tokens: int
    """Estimated."""


_chat = msgspec.json.Decoder(ChatRequest)
_messages = msgspec.json.Decoder(MessagesRequest)
Body = TypeVar("Body", bound=msgspec.Struct)


class ToolCache:
    """Tool lists by their bytes: a harness sends the same schemas with every call."""

    def __init__(self, size: int = 64):
        self._size = size
        self._known: dict[tuple[str, bytes], tuple[Tool, ...]] = {}

    def read(self, dialect: str, raw: msgspec.Raw) -> tuple[Tool, ...]:
        """The tools in ``raw``. Raises ``BadRequest``."""
        key = (dialect, bytes(raw))
        if key not in self._known:
            rows = msgspec.json.decode(raw)
            if rows is not None and not isinstance(rows, list):
                raise BadRequest(f"found {type(rows).__name__}; expected a list", param="tools")
            convert = tools_from_openai if dialect == "openai" else tools_from_anthropic
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = convert(rows or [])
        return self._known[key]


def read_openai(body: bytes, tools: ToolCache) -> Ask:
    """A Chat Completions body. Raises ``BadRequest`` naming the field."""
    return ask_of(decoded(_chat, body), tools)


def ask_of(request: ChatRequest, tools: ToolCache) -> Ask:
    """What a Chat Completions request asks for. Raises ``BadRequest`` naming the field."""
    refuse("n", request.n not in (None, 1), "one choice is all there is")
    refuse("stop", bool(request.stop), "stop sequences are not supported")
    refuse("logprobs", bool(request.logprobs), "a program has no probabilities")
    refuse("response_format", request.response_format not in (None, {"type": "text"}), "text only")
    refuse("tool_choice", request.tool_choice not in (None, "auto"), "the model chooses by itself; use 'auto'")
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    refuse("max_tokens", limit is not None and limit < 1, "at least 1")
    try:
        messages, offered = messages_from_openai(_rows(request.messages)), tools.read("openai", request.tools)
    except DataError as error:
        raise BadRequest(error.reason, param=error.field) from error
    return Ask(
        model=request.model,
        messages=_actable(messages),
        tools=offered,
        max_tokens=limit,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and request.stream_options.include_usage,
        input_tokens=tokens(_size(request.messages) + _size(request.tools)),
    )


def read_anthropic(body: bytes, tools: ToolCache) -> Ask:
    """A Messages body. Raises ``BadRequest`` naming the field."""
    request = decoded(_messages, body)
    choice = request.tool_choice
    kind = choice.get("type") if isinstance(choice, dict) else choice
    refuse("tool_choice", kind not in (None, "auto"), "the model chooses by itself; use {'type': 'auto'}")
    refuse("stop_sequences", bool(request.stop_sequences), "not supported")
    refuse("max_tokens", request.max_tokens < 1, "at least 1")
    try:
        messages = messages_from_anthropic(_rows(request.messages), msgspec.json.decode(request.system))
        offered = tools.read("anthropic", request.tools)
    except DataError as error:
        raise BadRequest(error.reason, param=error.field) from error
    return Ask(
        model=request.model,
        messages=_actable(messages),
        tools=offered,
        max_tokens=request.max_tokens,
        stream=bool(request.stream),
        include_usage=True,
        input_tokens=tokens(_size(request.messages) + _size(request.tools) + _size(request.system)),
    )


def refuse(param: str, found: bool, reason: str) -> None:
    """Raise ``BadRequest`` when ``found``: what cannot be honoured is refused, never dropped."""
    if found:
        raise BadRequest(reason, param=param)


def tokens(size: int) -> int:
    """Estimated tokens of ``size`` bytes, at least 1."""
    return max(1, (size + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN)


def _size(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))


def _rows(raw: msgspec.Raw) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(raw, type=list[dict[str, Any]])
    except msgspec.ValidationError as error:
        raise BadRequest(str(error).replace("`$", "`messages"), param="messages") from error


def _actable(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    last = messages[-1].role if messages else "nothing"
    refuse("messages", last not in ("user", "tool"), f"ends with {last}; expected a user message or tool results")
    return messages


def decoded(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """``body`` as the decoder's type. Raises ``BadRequest`` naming the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _refused(message: str) -> BadRequest:
    """Of msgspec's own words: ``… - at `$.messages` ``, or ``… unknown field `x` - at `$.firstchair` ``."""
    names = (_between(message, "at `$."), _between(message, "field `"))
    is_unknown = "unknown field `" in message
    return BadRequest(
        "unknown field; leave it out" if is_unknown else message, param=".".join(filter(None, names)) or None
    )


def _between(message: str, start: str) -> str:
    """What stands between ``start`` and the next backtick."""
    return message.partition(start)[2].partition("`")[0]
