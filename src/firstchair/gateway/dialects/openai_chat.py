"""OpenAI Chat Completions, as clients speak it and as providers do: OpenAI itself, vLLM, llama.cpp and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from firstchair.catalog.usage import counts_from_openai, counts_to_openai
from firstchair.chat.messages import ImagePart, Message, RawPart, TextPart, ThinkingPart, Tool
from firstchair.chat.openai_wire import (
    ReasoningKey,
    ToolImages,
    message_from_openai_response,
    message_to_openai_response,
    messages_from_openai,
    messages_to_openai,
    tools_from_openai,
    tools_to_openai,
)
from firstchair.chat.wire_fields import need
from firstchair.chat.wire_request import finish_to_openai
from firstchair.core.errors import BadRequest, DataError
from firstchair.gateway.dialects.base import (
    ChatAnswer,
    ChatRequest,
    DialectName,
    StreamReader,
    StreamWriter,
    Target,
    Written,
)
from firstchair.gateway.dialects.body import (
    OPENAI_SHARED,
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
    take_text,
    take_texts,
    with_fitting_ids,
)
from firstchair.gateway.dialects.collect import derived_finish
from firstchair.gateway.dialects.failures import OpenAIErrors
from firstchair.gateway.dialects.openai_chat_stream import OpenAIReader, OpenAIWriter
from firstchair.gateway.dialects.openai_finish import answer_extra, engine_tokens, other_choices, read_finish

_KNOWN = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "stop",
        "stream",
        "stream_options",
        "reasoning_effort",
        "response_format",
        "user",
    }
)
_TOOL_IMAGES: Mapping[str, ToolImages] = {"inline": "pass", "user_turn": "user", "refuse": "refuse"}


class OpenAIChat(OpenAIErrors):
    """The dialect; see ``base.Dialect``."""

    name: DialectName = "openai"

    def read_request(self, body: Mapping[str, Any]) -> ChatRequest:
        """Both names of the token limit may be given when they agree. Unknown fields are kept in ``extra``."""
        extra = extra_of(body, _KNOWN)
        rows = body.get("messages")
        if not isinstance(rows, list) or not rows:
            raise BadRequest("expected a list of at least one message", param="messages")
        with refusing():
            messages = messages_from_openai(rows)
        limit, newer = take_count(body, "max_tokens"), take_count(body, "max_completion_tokens")
        if limit is not None and newer is not None and limit != newer:
            raise BadRequest(
                f"max_tokens is {limit} and max_completion_tokens is {newer}; send one", param="max_tokens"
            )
        options = take_object(body, "stream_options") or {}
        include_usage = take_bool(options, "include_usage", inside="stream_options.")
        if rest := extra_of(options, frozenset({"include_usage"})):
            extra["stream_options"] = rest
        return ChatRequest(
            dialect="openai",
            **common_fields(body, hottest=2),
            messages=messages,
            tools=self.read_tools(body),
            tool_choice=_choice_in(body, extra),
            parallel_tool_calls=take_bool(body, "parallel_tool_calls"),
            max_tokens=limit if newer is None else newer,
            stop=take_texts(body, "stop", or_one=True),
            include_usage=bool(include_usage),
            reasoning_effort=take_text(body, "reasoning_effort"),
            response_format=_format_in(body),
            user=take_text(body, "user"),
            extra=extra,
        )

    def read_tools(self, body: Mapping[str, Any]) -> tuple[Tool, ...]:
        with refusing():
            return tools_from_openai(take_list(body, "tools"))

    def write_request(self, request: ChatRequest, target: Target) -> Written:
        """A stream always asks for the usage: the ledger needs it, whether or not the client does."""
        dropped: list[str] = []
        messages = with_fitting_ids(request.messages, target.call_ids or "openai")
        if target.reasoning == "drop":
            messages = _without_reasoning(messages, dropped)
        with refusing():
            rows = messages_to_openai(
                messages,
                dropped=dropped,
                tool_images=_TOOL_IMAGES[target.tool_images],
                reasoning_key=_reasoning_key(request, target),
            )
            tools = tools_to_openai(request.tools, dropped=dropped)
        if target.mid_system == "refuse":
            _refuse_mid_system(request.messages)
        body: dict[str, Any] = {"model": target.model, "messages": rows}
        if tools:
            # Without tools neither field may be sent.
            body["tools"] = tools
            if request.tool_choice is not None:
                body["tool_choice"] = choice_to_openai(request.tool_choice)
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        body |= _sampling_out(request, target)
        if request.stream:
            body["stream"] = True
            body["stream_options"] = {**request.extra.get("stream_options", {}), "include_usage": True}
        _extra_out(request, body, dropped)
        if target.want_tokens:
            body |= {"return_token_ids": True, "logprobs": True}
        return Written(body, names_of(dropped))

    def read_answer(self, body: Mapping[str, Any]) -> ChatAnswer:
        """The first choice; how many there were is noted in ``extra["n"]``."""
        need(body, dict, "response", "a chat.completion object")
        choices = need(body.get("choices"), list, "choices", "a list of choices")
        choice = need(choices[0] if choices else None, dict, "choices[0]", "an object with a message")
        message = _message_in(choice)
        finish, native, stop_sequence = read_finish(choice, has_calls=bool(message.tool_calls))
        scored = choice.get("logprobs")
        scored = scored if isinstance(scored, dict) else {}
        prompt = choice.get("prompt_token_ids") or body.get("prompt_token_ids")
        return ChatAnswer(
            id=need(body.get("id", ""), str, "id", "text"),
            model=need(body.get("model", ""), str, "model", "text"),
            message=message,
            finish=finish,
            native_finish=native,
            stop_sequence=stop_sequence,
            usage=counts_from_openai(body.get("usage")),
            raw_usage=body["usage"] if isinstance(body.get("usage"), dict) else None,
            tokens=engine_tokens(prompt, choice.get("token_ids"), scored.get("content")),
            dialect="openai",
            extra=answer_extra(body) | other_choices(len(choices), scored),
        )

    def write_answer(self, answer: ChatAnswer, request: ChatRequest, *, model: str) -> Written:
        """Several texts become one, reasoning goes first: this wire has one of each."""
        dropped: list[str] = []
        finish = derived_finish(answer.finish, has_calls=bool(answer.message.tool_calls))
        word, native = finish_to_openai(finish)
        own = answer.dialect == "openai"
        usage: Any = counts_to_openai(answer.usage) if answer.usage else None
        if own and answer.raw_usage:
            usage = answer.raw_usage
        body = message_to_openai_response(
            _one_of_each(answer.message, dropped),
            model=model,
            response_id=answer.id,
            created=answer.extra.get("created", request.received_s) if own else request.received_s,
            finish_reason=word,
            usage=usage or {},
            dropped=dropped,
        )
        if not usage:
            del body["usage"]
        choice = body["choices"][0]
        if native is not None:
            choice["native_finish_reason"] = answer.native_finish if own and answer.native_finish else native
        if answer.stop_sequence is not None:
            choice["stop_reason"] = answer.stop_sequence
        if own:
            if request.extra.get("logprobs"):
                choice["logprobs"] = answer.extra.get("logprobs")
            body |= {key: value for key, value in answer.extra.items() if key not in ("created", "logprobs", "n")}
        else:
            dropped += [f"{key}: no such field" for key, value in answer.extra.items() if said(value)]
        return Written(body, names_of(dropped))

    def reader(self) -> StreamReader:
        return OpenAIReader()

    def writer(self, request: ChatRequest, *, model: str) -> StreamWriter:
        return OpenAIWriter(request, model)


def _reasoning_key(request: ChatRequest, target: Target) -> ReasoningKey:
    """A client of this wire wrote its reasoning where its model reads it."""
    if request.dialect == "openai" or target.reasoning == "drop":
        return "reasoning_content"
    return target.reasoning


def _choice_in(body: Mapping[str, Any], extra: dict[str, Any]) -> Any:
    value = body.get("tool_choice")
    choice = choice_from_openai(value)
    if value is not None and choice is None:
        if not isinstance(value, dict) or not isinstance(value.get("type"), str) or value["type"] == "function":
            raise BadRequest("expected auto, none, required or a named tool", param="tool_choice")
        extra["tool_choice"] = value
    return choice


def _format_in(body: Mapping[str, Any]) -> dict[str, Any] | None:
    value = take_object(body, "response_format")
    if value is None:
        return None
    if value.get("type") not in ("text", "json_object", "json_schema"):
        raise BadRequest("expected text, json_object or json_schema", param="response_format.type")
    if value["type"] != "json_schema":
        return value
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise BadRequest("expected an object with name and schema", param="response_format.json_schema")
    if not isinstance(inner.get("schema"), dict | None):
        raise BadRequest("expected a JSON Schema object", param="response_format.json_schema.schema")
    return value


def _sampling_out(request: ChatRequest, target: Target) -> dict[str, Any]:
    fields = {
        target.max_tokens_field: request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "reasoning_effort": request.reasoning_effort,
        "response_format": request.response_format,
        "user": request.user,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _extra_out(request: ChatRequest, body: dict[str, Any], dropped: list[str]) -> None:
    """The fields that this request has beside: all of its own dialect, none but the shared of another."""
    if request.thinking is not None:
        dropped.append("thinking: no such field")
    if request.dialect == "openai":
        beside = request.extra
    else:
        shared = OPENAI_SHARED if request.dialect == "responses" else frozenset[str]()
        beside = leave_out(request, dropped, shared=shared)
    for key, value in beside.items():
        body.setdefault(key, value)


def _refuse_mid_system(messages: tuple[Message, ...]) -> None:
    spoken = False
    for index, message in enumerate(messages):
        if message.role == "system" and spoken:
            raise BadRequest(
                "a system message inside the conversation, which this target refuses", param=f"messages[{index}]"
            )
        spoken = spoken or message.role != "system"


def _without_reasoning(messages: tuple[Message, ...], dropped: list[str]) -> tuple[Message, ...]:
    out: list[Message] = []
    for index, message in enumerate(messages):
        if any(isinstance(part, ThinkingPart) for part in message.content):
            dropped.append(f"messages[{index}].reasoning: this target refuses reasoning")
            kept = tuple(part for part in message.content if not isinstance(part, ThinkingPart))
            message = msgspec.structs.replace(message, content=kept)
        out.append(message)
    return tuple(out)


def _message_in(choice: Mapping[str, Any]) -> Message:
    """The message, without notes on how empty content was written: a stream has no such forms."""
    row = need(choice.get("message"), dict, "choices[0].message", "an assistant message")
    row = {"role": "assistant", "content": None, **row}
    if row["role"] != "assistant":
        raise DataError(f"found {row['role']!r}; expected assistant", field="choices[0].message.role")
    calls = row.get("tool_calls")
    if isinstance(calls, list):
        row["tool_calls"] = [
            {key: value for key, value in call.items() if key != "index" and value is not None}
            if isinstance(call, dict)
            else call
            for call in calls
        ]
    message = message_from_openai_response({"choices": [{"message": row}]})
    own = {key: value for key, value in message.extra.get("openai", {}).items() if key != "content"}
    return msgspec.structs.replace(message, extra={"openai": own} if own else {})


def _one_of_each(message: Message, dropped: list[str]) -> Message:
    """The message as this wire can answer it: one reasoning, one text, then the calls."""
    thinking = [part for part in message.content if isinstance(part, ThinkingPart)]
    texts = [part for part in message.content if isinstance(part, TextPart)]
    parts: list[TextPart | ThinkingPart] = []
    if thinking:
        if any(part.signature for part in thinking):
            dropped.append("content.signature: no such field")
        parts.append(ThinkingPart(text=message.thinking, extra=_own(thinking[0])))
    if texts:
        parts.append(TextPart(text=message.text))
    for part in texts:
        dropped += [f"content.{key}: no such field" for key in part.extra.get("anthropic", {})]
    for other in message.content:
        if isinstance(other, RawPart):
            dropped.append(f"content.{other.data.get('type')}: no such part in an answer")
        elif isinstance(other, ImagePart):
            dropped.append("content.image: no such part in an answer")
    return msgspec.structs.replace(message, content=tuple(part for part in parts if part.text))


def _own(part: ThinkingPart) -> dict[str, Any]:
    own = part.extra.get("openai")
    return {"openai": own} if own else {}
