"""The OpenAPI 3.1 document, made from the operations themselves, and the check of requests by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ValidationError

import firstchair
from firstchair.core.config import words_of
from firstchair.core.jsontext import loads_bytes
from firstchair.gateway.console.access import Caller
from firstchair.gateway.console.desk import Desk
from firstchair.gateway.console.refusal import Refusal
from firstchair.gateway.control.snapshot import Scope

PREFIX = "#/components/schemas/"


class Param(NamedTuple):
    """One parameter of a query or path."""

    name: str
    schema: dict[str, Any]
    about: str


class Asked(NamedTuple):
    """A request that was read and checked."""

    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any


class Operation(NamedTuple):
    """One operation: what is documented is what is served."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    name: str
    about: str
    scope: Scope
    run: Callable[[Desk, Asked], Any]
    answer: type
    body: type[BaseModel] | None = None
    query: Sequence[Param] = ()
    places: Sequence[Param] = ()
    """Parameters in the path."""
    status: int = 200


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document of all ``operations``."""
    _, schemas = msgspec.json.schema_components(
        list(dict.fromkeys(operation.answer for operation in operations)), ref_template=PREFIX + "{name}"
    )
    schemas = dict(schemas)
    for operation in operations:
        if operation.body is not None:
            schema = operation.body.model_json_schema(ref_template=PREFIX + "{model}")
            schemas |= schema.pop("$defs", {})
            schemas[operation.body.__name__] = schema
    schemas["Error"] = _ERROR
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Firstchair gateway administration",
            "version": firstchair.__version__,
            "description": "Keys need the scope `admin`; `traces` is enough to read sessions and ledger. 400: the "
            "request is not what this document says. 409: it is, and does not fit what is in force, or itself.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}],
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "param"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    400: "Not what this document says",
    401: "No key, or one that is not known",
    403: "The key lacks the scope, or a page of another site asks",
    404: "There is no such thing",
    409: "Does not fit what is in force, or itself",
    413: "Too large",
    415: "Not application/json",
    503: "The database cannot be reached",
}


def _described(operation: Operation) -> dict[str, Any]:
    wanted = {400, 401, 403, 503}
    wanted |= {404} if operation.places else set()
    wanted |= {409} if operation.method != "GET" else set()
    wanted |= {413, 415} if operation.body is not None else set()
    failures = {
        str(status): {
            "description": _STATUSES[status],
            "content": {"application/json": {"schema": {"$ref": PREFIX + "Error"}}},
        }
        for status in sorted(wanted)
    }
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "description": f"Scope: {operation.scope}.",
        "parameters": [
            *({**_param(param, "path"), "required": True} for param in operation.places),
            *(_param(param, "query") for param in operation.query),
        ],
        "responses": {
            str(operation.status): {
                "description": "Done",
                "content": {"application/json": {"schema": {"$ref": PREFIX + operation.answer.__name__}}},
            },
            **failures,
        },
    }
    if operation.body is not None:
        schema = {"$ref": PREFIX + operation.body.__name__}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _param(param: Param, place: str) -> dict[str, Any]:
    return {"name": param.name, "in": place, "description": param.about, "schema": param.schema}


# --- reading requests -------------------------------------------------------------------------------------------


def read_query(operation: Operation, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The query as the document has it, with its defaults. Raises ``Refusal`` (400)."""
    known = {param.name: param for param in operation.query}
    found = {name: param.schema["default"] for name, param in known.items() if "default" in param.schema}
    seen: set[str] = set()
    for name, text in pairs:
        if name not in known:
            expected = ", ".join(known) or "none"
            raise Refusal(400, f"unknown parameter {name[:80]!r}; expected one of: {expected}", param=name[:80])
        if name in seen:
            raise Refusal(400, f"{name}: stands twice; expected once", param=name)
        seen.add(name)
        value = _value(text, known[name].schema["type"])
        _check(known[name].schema, value, name)
        found[name] = value
    return found


def _value(text: str, kind: str) -> Any:
    if kind == "integer" and re.fullmatch(r"-?[0-9]{1,20}", text):
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def read_body(model: type[BaseModel], raw: bytes) -> Any:
    """The body as ``model``. Raises ``Refusal``: 400 when it is not what the document says, 409 when it is and
    contradicts itself."""
    try:
        data = loads_bytes(raw)
    except ValueError as error:
        raise Refusal(400, f"the body is not strict JSON: {error}") from None
    _check(model.model_json_schema(), data, "")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        message = words_of(problem)
        raise Refusal(409, f"{where}: {message}"[:600] if where else message[:600], param=where or None) from None


def _check(schema: dict[str, Any], value: Any, name: str) -> None:
    import jsonschema

    problem = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    if problem is not None:
        where = ".".join([*([name] if name else []), *map(str, problem.absolute_path)])
        message = problem.message if len(problem.message) <= 400 else problem.message[:400] + "…"
        raise Refusal(400, f"{where}: {message}" if where else message, param=where or None)
