"""Anthropic Messages, as a client speaks it and as a provider does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from firstchair.catalog.usage import counts_from_anthropic, counts_to_anthropic
from firstchair.chat.anthropic_blocks import MALFORMED_KEY, carried_text
from firstchair.chat.anthropic_wire import (
    MidSystem,
    message_from_anthropic_response,
    message_to_anthropic_response,
    messages_from_anthropic,
    messages_to_anthropic,
    tools_from_anthropic,
    tools_to_anthropic,
)
from firstchair.chat.messages import ImagePart, Message, Part, RawPart, ThinkingPart, Tool, ToolCall
from firstchair.chat.wire_fields import need
from firstchair.chat.wire_request import (
    check_thinking,
    finish_from_anthropic,
    finish_to_anthropic,
    max_tokens_to_anthropic,
    tool_choice_to_anthropic,
    tool_choice_to_openai,
)
from firstchair.core.errors import BadRequest
from firstchair.gateway.dialects.anthropic_stream import AnthropicReader, AnthropicWriter
from firstchair.gateway.dialects.base import (
    ChatAnswer,
    ChatRequest,
    DialectName,
    Failure,
    StreamReader,
    StreamWriter,
    Target,
    ToolChoice,
    Written,
)
from firstchair.gateway.dialects.body import (
    choice_from_openai,
    choice_to_openai,
    common_fields,
    extra_of,
    leave_out,
    names_of,
    refusing,
    said,
    take_bool,
    take_count,
    take_list,
    take_object,
    take_texts,
    with_fitting_ids,
)
from firstchair.gateway.dialects.collect import derived_finish
from firstchair.gateway.dialects.failures import ProviderErrors, anthropic_error

_KNOWN = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "max_tokens",
        "temperature",
        "top_p",
        "stop_sequences",
        "stream",
        "thinking",
        "metadata",
    }
)
_ANSWER = frozenset({"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"})


class AnthropicMessages(ProviderErrors):
    """The dialect; see ``base.Dialect``."""

    name: DialectName = "anthropic"

    def read_request(self, body: Mapping[str, Any]) -> ChatRequest:
        """Unknown fields are kept in ``extra``. A missing ``max_tokens`` is accepted: counting tokens has none."""
        extra = extra_of(body, _KNOWN)
        rows, system = body.get("messages"), body.get("system")
        if not isinstance(rows, list) or not rows:
            raise BadRequest("expected a list of at least one message", param="messages")
        if not isinstance(system, str | list | None):
            raise BadRequest("expected text or a list of text blocks", param="system")
        with refusing():
            messages = messages_from_anthropic(rows, system)
        metadata = take_object(body, "metadata") or {}
        user = metadata.get("user_id")
        if not isinstance(user, str | None):
            raise BadRequest("expected text", param="metadata.user_id")
        if rest := extra_of(metadata, frozenset({"user_id"})):
            extra["metadata"] = rest
        choice, parallel = _choice_in(take_object(body, "tool_choice"))
        thinking = take_object(body, "thinking")
        if thinking is not None and not isinstance(thinking.get("type"), str):
            raise BadRequest("expected enabled, adaptive or disabled", param="thinking.type")
        return ChatRequest(
            dialect="anthropic",
            **common_fields(body, hottest=1),
            messages=messages,
            tools=self.read_tools(body),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            max_tokens=take_count(body, "max_tokens"),
            stop=take_texts(body, "stop_sequences"),
            include_usage=True,
            thinking=thinking,
            response_format=_format_in(extra),
            user=user,
            extra=extra,
        )

    def read_tools(self, body: Mapping[str, Any]) -> tuple[Tool, ...]:
        with refusing():
            return tools_from_anthropic(take_list(body, "tools"))

    def write_request(self, request: ChatRequest, target: Target) -> Written:
        """Where the client gave no limit, the slot's is sent and listed with its value: this wire demands one."""
        dropped: list[str] = []
        own = request.dialect == "anthropic"
        limit, defaulted = max_tokens_to_anthropic(request.max_tokens, None, default=target.max_tokens_default)
        if defaulted:
            dropped.append(f"max_tokens={limit}: the client gave none")
        thinking = request.thinking or {}
        check_thinking(thinking, limit)
        messages = with_fitting_ids(_signed(request.messages), target.call_ids or "anthropic")
        with refusing():
            prompt = messages_to_anthropic(
                messages, dropped=dropped, malformed="carry", mid_system=_mid_system(own, target)
            )
            tools = tools_to_anthropic(request.tools, dropped=dropped)
        body: dict[str, Any] = {"model": target.model, "max_tokens": limit, "messages": prompt.messages}
        if prompt.system:
            body["system"] = prompt.system
        choice = tool_choice_to_anthropic(
            choice_to_openai(request.tool_choice),
            request.parallel_tool_calls,
            has_tools=bool(tools),
            thinking=thinking.get("type") in ("enabled", "adaptive"),
        )
        if request.temperature is not None and request.temperature > 1:
            raise BadRequest(f"found {request.temperature:g}; this target takes 0 to 1", param="temperature")
        fields = {
            "tools": tools or None,
            "tool_choice": choice,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stop_sequences": list(request.stop) or None,
            "stream": request.stream or None,
            "thinking": request.thinking,
        }
        body |= {key: value for key, value in fields.items() if value is not None}
        if request.reasoning_effort is not None:
            dropped.append("reasoning_effort: no such field")
        _extra_out(request, body, dropped)
        return Written(body, names_of(dropped))

    def read_answer(self, body: Mapping[str, Any]) -> ChatAnswer:
        message = message_from_anthropic_response(body)
        has_calls = bool(message.tool_calls)
        word, stop_sequence, usage = body.get("stop_reason"), body.get("stop_sequence"), body.get("usage")
        need(word, str, "stop_reason", "text")
        return ChatAnswer(
            id=need(body.get("id", ""), str, "id", "text"),
            model=need(body.get("model", ""), str, "model", "text"),
            message=message,
            finish=derived_finish(finish_from_anthropic(word, has_calls=has_calls), has_calls=has_calls),
            native_finish=word,
            stop_sequence=stop_sequence if isinstance(stop_sequence, str) else None,
            usage=counts_from_anthropic(usage),
            raw_usage=usage if isinstance(usage, dict) else None,
            dialect="anthropic",
            extra={key: value for key, value in body.items() if key not in _ANSWER and value is not None},
        )

    def write_answer(self, answer: ChatAnswer, request: ChatRequest, *, model: str) -> Written:
        """Malformed arguments are carried as text under one declared key; a missing usage is all zeros."""
        dropped: list[str] = []
        own = answer.dialect == "anthropic"
        usage = counts_to_anthropic(answer.usage) if answer.usage else {"input_tokens": 0, "output_tokens": 0}
        if own and answer.raw_usage:
            usage = answer.raw_usage
        elif answer.usage is None:
            dropped.append("usage: the provider said nothing")
        finish = derived_finish(answer.finish, has_calls=bool(answer.message.tool_calls))
        body = message_to_anthropic_response(
            _carried(answer.message, dropped),
            model=model,
            response_id=answer.id,
            stop_reason=finish_to_anthropic(finish),
            usage=usage,
            stop_sequence=answer.stop_sequence,
            dropped=dropped,
        )
        if own:
            body |= answer.extra
        else:
            quiet = ("created", "logprobs", "n", "object")
            dropped += [
                f"{key}: no such field" for key, value in answer.extra.items() if key not in quiet and said(value)
            ]
        return Written(body, names_of(dropped))

    def reader(self) -> StreamReader:
        return AnthropicReader()

    def writer(self, request: ChatRequest, *, model: str) -> StreamWriter:
        return AnthropicWriter(model)

    def write_failure(self, failure: Failure, *, request_id: str) -> tuple[int, dict[str, Any]]:
        return anthropic_error(failure, request_id=request_id)


def _choice_in(value: dict[str, Any] | None) -> tuple[ToolChoice | None, bool | None]:
    if value is None:
        return None, None
    if not isinstance(value.get("type"), str):
        raise BadRequest("expected auto, any, none or tool", param="tool_choice.type")
    disable = take_bool(value, "disable_parallel_tool_use", inside="tool_choice.")
    choice = choice_from_openai(tool_choice_to_openai(value, has_tools=True)["tool_choice"])
    return choice, None if disable is None else not disable


def _format_in(extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """``output_config.format``; it stays in ``extra`` too, for a request in the same dialect."""
    config = extra.get("output_config")
    if not isinstance(config, dict | None):
        raise BadRequest("expected an object", param="output_config")
    found = (config or {}).get("format")
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), dict):
        raise BadRequest("expected an object with type and schema", param="output_config.format")
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": found["schema"], "strict": True}}


def _mid_system(own: bool, target: Target) -> MidSystem:
    """A client of this wire that sends system messages in the middle knows that its model takes them."""
    if target.mid_system == "refuse":
        return "refuse"
    return "system" if own else "user"


def _signed(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Reasoning with an empty signature came from a provider that signs nothing; this one takes back only its own."""
    out: list[Message] = []
    for message in messages:
        if any(isinstance(part, ThinkingPart) and part.signature == "" for part in message.content):
            parts = tuple(
                ThinkingPart(text=part.text, extra=part.extra)
                if isinstance(part, ThinkingPart) and part.signature == ""
                else part
                for part in message.content
            )
            message = msgspec.structs.replace(message, content=parts)
        out.append(message)
    return tuple(out)


def _extra_out(request: ChatRequest, body: dict[str, Any], dropped: list[str]) -> None:
    """User, answer format, and the fields beside: all of this dialect, none of another."""
    own = request.dialect == "anthropic"
    metadata = dict(request.extra["metadata"]) if own and "metadata" in request.extra else {}
    if request.user is not None:
        metadata["user_id"] = request.user
    if metadata:
        body["metadata"] = metadata
    if own:
        for key, value in request.extra.items():
            body.setdefault(key, value)
        return
    if request.response_format is not None:
        _format_out(request.response_format, body, dropped)
    leave_out(request, dropped)


def _format_out(wanted: Mapping[str, Any], body: dict[str, Any], dropped: list[str]) -> None:
    if wanted["type"] == "text":
        return
    inner = wanted.get("json_schema") or {}
    schema = inner.get("schema")
    if wanted["type"] != "json_schema" or not isinstance(schema, dict):
        raise BadRequest(
            f"found {wanted['type']} without a schema; this target takes json_schema with one",
            param="response_format",
        )
    body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    for key, value in inner.items():
        if key not in ("schema", "strict", "name") and said(value):
            dropped.append(f"response_format.json_schema.{key}: no such field")


def _carried(message: Message, dropped: list[str]) -> Message:
    """The message without parts that only another wire knows, each listed."""
    kept: list[Part] = []
    for part in message.content:
        if isinstance(part, RawPart) and part.provider != "anthropic":
            dropped.append(f"content.{part.data.get('type')}: no such block")
        elif isinstance(part, ImagePart):
            dropped.append("content.image: no such block in an answer")
        else:
            kept.append(part)
    calls = tuple(_uncarried(call) for call in message.tool_calls)
    return msgspec.structs.replace(message, content=tuple(kept), tool_calls=calls)


def _uncarried(call: ToolCall) -> ToolCall:
    """A model that imitates the declared key for malformed arguments means the text in it."""
    if MALFORMED_KEY not in call.arguments:
        return call
    text = carried_text(call.parsed() or {})
    return call if text is None else msgspec.structs.replace(call, arguments=text)
