"""OpenAI Responses, without state: every request brings its whole conversation, nothing is kept between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstchair.chat.messages import RawPart, Tool
from firstchair.chat.openai_wire import tools_from_openai
from firstchair.chat.wire_fields import need
from firstchair.core.errors import BadRequest, DataError
from firstchair.gateway.dialects.base import (
    ChatAnswer,
    ChatRequest,
    DialectName,
    StreamReader,
    StreamWriter,
    Target,
    ToolChoice,
    Written,
)
from firstchair.gateway.dialects.body import (
    OPENAI_SHARED,
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
    with_fitting_ids,
    would_change,
)
from firstchair.gateway.dialects.collect import derived_finish
from firstchair.gateway.dialects.failures import OpenAIErrors
from firstchair.gateway.dialects.responses_items import (
    ItemReader,
    answer_message,
    input_items,
    instructions_of,
    items_of_part,
    placed,
    refusal_item,
)
from firstchair.gateway.dialects.responses_object import (
    Ids,
    choice_to_responses,
    ended,
    finish_of,
    format_to_responses,
    item_status,
    response_object,
    tools_to_responses,
    usage_from_responses,
    usage_to_responses,
)
from firstchair.gateway.dialects.responses_stream import ResponsesReader, ResponsesWriter

_KNOWN = frozenset(
    {
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "reasoning",
        "text",
        "temperature",
        "top_p",
        "stream",
        "stream_options",
        "store",
        "user",
        "background",
        "previous_response_id",
        "conversation",
    }
)
_STATE: Mapping[str, str] = {
    "previous_response_id": "no response is kept here; send the whole conversation as input",
    "conversation": "no conversation is kept here; send all of it as input",
    "background": "nothing runs here after its answer; leave it out and use stream for long answers",
    "prompt": "no prompt is kept here; send its text as instructions and input",
}
"""Fields that need a server with a memory."""
_TOOL_KEYS = frozenset({"type", "name", "description", "parameters", "strict"})
_ANSWER_KEYS = frozenset({"service_tier", "system_fingerprint"})


class OpenAIResponses(OpenAIErrors):
    """The dialect; see ``base.Dialect``."""

    name: DialectName = "responses"

    def read_request(self, body: Mapping[str, Any]) -> ChatRequest:
        """``store`` is read as false and told as dropped; parts of objects stay in ``extra`` under dotted names."""
        for key, why in _STATE.items():
            if body.get(key):
                raise BadRequest(why, param=key)
        instructions = take_text(body, "instructions")
        if body.get("input") is None and not instructions:
            raise BadRequest("is missing; expected text or a list of items", param="input")
        extra = {key: value for key, value in extra_of(body, _KNOWN).items() if key != "prompt"}
        if take_bool(body, "store") is not False:  # left out it means true
            extra["store"] = True
        reader = ItemReader()
        with refusing():
            messages = reader.read(body.get("input"), instructions)
            tools = tools_from_openai(_tools_in(take_list(body, "tools"), extra))
        if not messages:
            raise BadRequest("expected at least one item", param="input")
        extra |= reader.beside
        for key in ("reasoning", "text", "stream_options"):
            rest = extra_of(take_object(body, key) or {}, frozenset({"effort", "format"}))
            extra |= {f"{key}.{name}": value for name, value in rest.items() if said(value)}
        if extra.get("stream_options.include_obfuscation") is False:
            del extra["stream_options.include_obfuscation"]
        return ChatRequest(
            dialect="responses",
            **common_fields(body, hottest=2),
            messages=messages,
            tools=tools,
            tool_choice=_choice_in(body.get("tool_choice")),
            parallel_tool_calls=take_bool(body, "parallel_tool_calls"),
            max_tokens=take_count(body, "max_output_tokens"),
            reasoning_effort=take_text(take_object(body, "reasoning") or {}, "effort"),
            response_format=_format_in(take_object(body, "text") or {}),
            user=take_text(body, "user"),
            extra=extra,
        )

    def read_tools(self, body: Mapping[str, Any]) -> tuple[Tool, ...]:
        with refusing():
            return tools_from_openai(_tools_in(take_list(body, "tools"), {}))

    def write_request(self, request: ChatRequest, target: Target) -> Written:
        """System messages at the start become ``instructions``. Always without ``store``."""
        if request.stop:
            raise would_change("stop_sequences" if request.dialect == "anthropic" else "stop")
        dropped: list[str] = []
        messages = with_fitting_ids(request.messages, target.call_ids or "openai")
        leading = 0
        while leading < len(messages) and messages[leading].role == "system":
            leading += 1
        with refusing():
            instructions = instructions_of(messages[:leading], dropped)
            items = list(input_items(messages[leading:], dropped))
            tools = tools_to_responses(request, dropped)
        fields: dict[str, Any] = {
            "instructions": instructions,
            "max_output_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "user": request.user,
            "stream": True if request.stream else None,
        }
        body = {"model": target.model, "input": items, "store": False}
        body |= {key: value for key, value in fields.items() if value is not None}
        if tools:
            body["tools"] = tools
            if request.tool_choice is not None:
                body["tool_choice"] = choice_to_responses(request.tool_choice)
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        if request.reasoning_effort is not None:
            body["reasoning"] = {"effort": request.reasoning_effort}
        if request.response_format is not None:
            body["text"] = {"format": format_to_responses(request.response_format)}
        if request.thinking:
            dropped.append("thinking: no such field")
        _extra_out(request, body, dropped)
        return Written(body, names_of(dropped))

    def read_answer(self, body: Mapping[str, Any]) -> ChatAnswer:
        need(body, dict, "response", "a response object")
        if body.get("status") == "failed":
            error = body.get("error")
            message = error.get("message") if isinstance(error, Mapping) else None
            raise DataError(f"the response failed: {str(message)[:200]}", field="error")
        items = need(body.get("output"), list, "output", "a list of items")
        message = answer_message(items)
        finish, native = finish_of(body, has_calls=bool(message.tool_calls))
        return ChatAnswer(
            id=need(body.get("id", ""), str, "id", "text"),
            model=need(body.get("model", ""), str, "model", "text"),
            message=message,
            finish=finish,
            native_finish=native,
            usage=usage_from_responses(body.get("usage")),
            raw_usage=body["usage"] if isinstance(body.get("usage"), dict) else None,
            dialect="responses",
            extra={key: body[key] for key in _ANSWER_KEYS if body.get(key) is not None},
        )

    def write_answer(self, answer: ChatAnswer, request: ChatRequest, *, model: str) -> Written:
        """Reasoning, text and calls as one item each, in their order."""
        dropped: list[str] = []
        message, ids = answer.message, Ids(answer.id)
        finish = derived_finish(answer.finish, has_calls=bool(message.tool_calls))
        items: list[dict[str, Any]] = []
        for part in placed(message):
            item = items_of_part(part, message)
            if item is None:
                kind = part.data.get("type") if isinstance(part, RawPart) else "image"
                dropped.append(f"content.{kind}: no such item")
            else:
                items.append(item)
            own = getattr(part, "extra", {}).get("anthropic", {})
            dropped += [f"content.{key}: no such field" for key in own]
        refusal = message.extra.get("openai", {}).get("refusal")
        if refusal:
            items.append(refusal_item(refusal))
        output = [
            {
                "id": ids.item(item["type"], index),
                **item,
                "status": item_status(finish, last=index == len(items) - 1),
            }
            for index, item in enumerate(items)
        ]
        own_usage = answer.raw_usage if answer.dialect == "responses" else None
        usage = own_usage or (usage_to_responses(answer.usage) if answer.usage else None)
        body = ended(
            response_object(request, response_id=ids.response, model=model, status="completed"), finish, output, usage
        )
        for key, value in answer.extra.items():
            if key in _ANSWER_KEYS:
                body[key] = value
            elif said(value) and key != "created":
                dropped.append(f"{key}: no such field")
        return Written(body, names_of(dropped))

    def reader(self) -> StreamReader:
        return ResponsesReader()

    def writer(self, request: ChatRequest, *, model: str) -> StreamWriter:
        return ResponsesWriter(request, model)


def _tools_in(rows: list[Any], extra: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools in Chat Completions' form. A tool that runs inside OpenAI is refused by name."""
    out = []
    for index, row in enumerate(rows):
        where = f"tools[{index}]"
        need(row, dict, where, "an object with type and name")
        kind = row.get("type")
        if kind != "function":
            raise DataError(
                f"found {kind!r}; expected function: other tools run inside OpenAI and not here",
                field=f"{where}.type",
            )
        need(row.get("name"), str, f"{where}.name", "text")
        extra |= {f"{where}.{key}": row[key] for key in row if key not in _TOOL_KEYS and row[key]}
        function = {key: row[key] for key in _TOOL_KEYS & row.keys() if key != "type" and row[key] is not None}
        out.append({"type": "function", "function": function})
    return out


def _choice_in(value: Any) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return ToolChoice(kind=value)  # type: ignore[arg-type]
    if isinstance(value, dict) and value.get("type") == "function" and isinstance(value.get("name"), str):
        return ToolChoice(kind="tool", name=value["name"])
    raise BadRequest("expected auto, none, required or a function by name", param="tool_choice")


def _format_in(text: Mapping[str, Any]) -> dict[str, Any] | None:
    """Chat Completions' ``response_format``."""
    chosen = text.get("format")
    if chosen is None:
        return None
    kind = chosen.get("type") if isinstance(chosen, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        raise BadRequest("expected text, json_object or json_schema", param="text.format.type")
    if not isinstance(chosen.get("name"), str) or not isinstance(chosen.get("schema"), dict):
        raise BadRequest("expected a name and a schema", param="text.format")
    inner = {key: chosen[key] for key in ("name", "description", "schema", "strict") if chosen.get(key) is not None}
    return {"type": "json_schema", "json_schema": inner}


def _extra_out(request: ChatRequest, body: dict[str, Any], dropped: list[str]) -> None:
    if request.dialect != "responses":
        shared = OPENAI_SHARED if request.dialect == "openai" else frozenset[str]()
        body |= leave_out(request, dropped, shared=shared)
        return
    for key, value in request.extra.items():
        if not said(value):
            continue
        outer, _, inner = key.partition(".")
        if key == "store" or "[" in key:
            dropped.append(f"{key}: no such field")
        elif inner:
            body[outer] = {**body.get(outer, {}), inner: value}
        else:
            body.setdefault(key, value)
