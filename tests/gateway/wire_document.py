"""An OpenAPI document of the call port, for requests made up by schemathesis. The gateway serves none of its own: the
wires are the vendors', and their documents describe them; this one says what holds for every provider behind it."""

from __future__ import annotations

from typing import Any

MODELS = ("to-anthropic", "to-openai", "to-compatible")
"""Names of slots, one for each type of provider."""
TEXT = {"type": "string", "maxLength": 40}
OBJECT = {"type": "object"}


def _fields(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _one(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def _list(schema: dict[str, Any], most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": schema, "maxItems": most}


def _const(value: str) -> dict[str, Any]:
    return {"const": value}


NUMBER = {"type": "number", "minimum": 0, "maximum": 2}
COUNT = {"type": "integer", "minimum": 1, "maximum": 10_000}
MODEL = {"type": "string", "enum": list(MODELS)}
BOOL = _one({"type": "boolean"}, {"type": "null"})
SCHEMA = _fields("type", type=_const("object"), properties=OBJECT)
CHAT_CALL = _fields(
    "id",
    "type",
    "function",
    id=TEXT,
    type=_const("function"),
    function=_fields("name", "arguments", name=TEXT, arguments=TEXT),
)
CHAT_PART = _one(
    _fields("type", "text", type=_const("text"), text=TEXT),
    _fields("type", "image_url", type=_const("image_url"), image_url=_fields("url", url=TEXT)),
)
CHAT_MESSAGE = _one(
    _fields("role", "content", role={"enum": ["system", "developer", "user"]}, content=_one(TEXT, _list(CHAT_PART))),
    _fields("role", role=_const("assistant"), content=_one(TEXT, {"type": "null"}), tool_calls=_list(CHAT_CALL)),
    _fields("role", "tool_call_id", "content", role=_const("tool"), tool_call_id=TEXT, content=TEXT),
)
CHAT = _fields(
    "model",
    "messages",
    model=MODEL,
    messages=_list(CHAT_MESSAGE, 5),
    stream=BOOL,
    tools=_list(
        _fields("type", "function", type=_const("function"), function=_fields("name", name=TEXT, parameters=SCHEMA))
    ),
    tool_choice={"enum": ["auto", "none", "required"]},
    temperature=NUMBER,
    max_tokens=COUNT,
    max_completion_tokens=COUNT,
    stop=_one(TEXT, _list(TEXT)),
    response_format=_fields("type", type={"enum": ["text", "json_object"]}),
    n={"type": "integer", "minimum": 1, "maximum": 2},
)
BLOCK = _one(
    _fields("type", "text", type=_const("text"), text=TEXT),
    _fields("type", "id", "name", "input", type=_const("tool_use"), id=TEXT, name=TEXT, input=OBJECT),
    _fields("type", "tool_use_id", type=_const("tool_result"), tool_use_id=TEXT, content=TEXT),
    _fields("type", "thinking", type=_const("thinking"), thinking=TEXT, signature=TEXT),
    _fields("type", "source", type=_const("image"), source=_fields("type", "url", type=_const("url"), url=TEXT)),
)
MESSAGES = _fields(
    "model",
    "messages",
    "max_tokens",
    model=MODEL,
    max_tokens=COUNT,
    messages=_list(
        _fields("role", "content", role={"enum": ["user", "assistant"]}, content=_one(TEXT, _list(BLOCK))), 5
    ),
    system=_one(TEXT, _list(_fields("type", "text", type=_const("text"), text=TEXT))),
    stream=BOOL,
    tools=_list(_fields("name", "input_schema", name=TEXT, input_schema=SCHEMA)),
    tool_choice=_fields("type", type={"enum": ["auto", "any", "none", "tool"]}, name=TEXT),
    thinking=_fields("type", type={"enum": ["disabled", "adaptive"]}),
    temperature=NUMBER,
    stop_sequences=_list(TEXT),
    metadata=_fields(user_id=TEXT),
)
ITEM = _one(
    _fields("role", "content", role={"enum": ["user", "system", "assistant"]}, content=_one(TEXT, _list(OBJECT))),
    _fields(
        "type", "call_id", "name", "arguments", type=_const("function_call"), call_id=TEXT, name=TEXT, arguments=TEXT
    ),
    _fields("type", "call_id", "output", type=_const("function_call_output"), call_id=TEXT, output=TEXT),
)
RESPONSES = _fields(
    "model",
    "input",
    model=MODEL,
    input=_one(TEXT, _list(ITEM, 5)),
    instructions=_one(TEXT, {"type": "null"}),
    stream=BOOL,
    store=BOOL,
    tools=_list(_fields("type", "name", type=_const("function"), name=TEXT, parameters=SCHEMA)),
    tool_choice={"enum": ["auto", "none", "required"]},
    reasoning=_fields(effort={"enum": ["low", "high"]}),
    text=_fields(format=_fields("type", type={"enum": ["text", "json_object"]})),
    max_output_tokens=COUNT,
    previous_response_id={"type": "null"},
)
OPENAI_ERROR = _fields(
    "error", error=_fields("message", "type", "param", "code", message={"type": "string", "minLength": 1}, type=TEXT)
)
ANTHROPIC_ERROR = _fields(
    "type",
    "error",
    type=_const("error"),
    error=_fields("type", "message", type=TEXT, message={"type": "string", "minLength": 1}),
)
CALL_ID = {"request-id": {"required": True, "schema": {"type": "string", "pattern": "^call_[0-9a-f]{24}$"}}}


def _answer(about: str, schema: dict[str, Any], *, streamed: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if streamed:
        content["text/event-stream"] = {"schema": _fields("data", data={"type": "string"})}
    return {"description": about, "headers": CALL_ID, "content": content}


def _post(
    name: str, body: dict[str, Any], answer: dict[str, Any], error: dict[str, Any], *refusals: str
) -> dict[str, Any]:
    refused = {status: _answer("Refused", error) for status in ("400", "401", "404", *refusals)}
    session = {"name": "x-firstchair-session", "in": "header", "schema": TEXT}
    return {
        "operationId": name,
        "parameters": [session],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": _answer("Done", answer, streamed=True), **refused},
    }


def document() -> dict[str, Any]:
    """The document."""
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    counted = {**MESSAGES, "required": ["model", "messages"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Firstchair gateway calls", "version": "1"},
        "paths": {
            "/v1/chat/completions": {
                "post": _post("chat", CHAT, _fields("id", "choices", "usage", choices=_list(OBJECT)), OPENAI_ERROR)
            },
            "/v1/responses": {"post": _post("respond", RESPONSES, _fields("id", "output", "status"), OPENAI_ERROR)},
            "/v1/messages": {
                "post": _post("message", MESSAGES, _fields("id", "content", "stop_reason", "usage"), ANTHROPIC_ERROR)
            },
            "/v1/messages/count_tokens": {"post": _post("count", counted, _fields("input_tokens"), ANTHROPIC_ERROR)},
            "/v1/models/{model}": {
                "get": {
                    "operationId": "model",
                    "parameters": [model],
                    "responses": {"200": _answer("Found", _fields("id")), "404": _answer("Not found", OBJECT)},
                }
            },
        },
    }
