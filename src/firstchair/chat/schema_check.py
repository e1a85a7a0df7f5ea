"""Arguments against a tool's JSON Schema: a compiled yes for the common case, jsonschema for the rest.

Tool schemas are mostly ``type``, ``properties``, ``required`` and ``enum``. Those compile into plain Python
predicates that answer in microseconds. Any other keyword, and any "no", goes to ``jsonschema``, which also says
where the fault is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class SchemaFault:
    """Where and why a value breaks its schema."""

    path: str
    """JSON path below the arguments: ``$.items[0].name``; ``$`` is the whole object."""
    message: str


def check_arguments(schema: Mapping[str, Any], value: Any) -> SchemaFault | None:
    """The first fault of ``value`` under ``schema`` (nearest to the root), or ``None``.

    ``schema`` is taken as unchanging and cached by identity. A schema that is itself broken, or that refers to
    something outside itself, faults nothing; ``schema_problem`` says so.
    """
    return _compiled(schema)(value)


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why ``schema`` is not a usable JSON Schema (draft 2020-12), or ``None``."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    from firstchair.chat.schema_validator import FAULTS, FORMATS

    try:
        Draft202012Validator.check_schema(schema, FORMATS)
    except SchemaError as error:
        return f"{path_text(error.absolute_path)}: {error.message}"
    except RecursionError:
        return "$: is nested too deeply, or holds itself; write it flat, or use $ref"
    except FAULTS as error:
        return f"$: cannot be checked: {type(error).__name__}: {error}"
    return None


def path_text(parts: Any) -> str:
    """A JSON path as text: ``["a", 0, "b"]`` → ``$.a[0].b``."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


_CACHE_SIZE = 4096
# The schema is kept beside its check, so that its id cannot be given to another object meanwhile.
_cache: dict[int, tuple[Mapping[str, Any], Callable[[Any], SchemaFault | None]]] = {}


def _compiled(schema: Mapping[str, Any]) -> Callable[[Any], SchemaFault | None]:
    entry = _cache.get(id(schema))
    if entry is not None:
        return entry[1]
    if len(_cache) >= _CACHE_SIZE:
        _cache.clear()
    check = _build(schema)
    _cache[id(schema)] = (schema, check)
    return check


def _build(schema: Mapping[str, Any]) -> Callable[[Any], SchemaFault | None]:
    try:
        quick = _predicate(schema)
    except RecursionError:
        quick = None
    slow: list[Any] = []

    def check(value: Any) -> SchemaFault | None:
        try:
            if quick is not None and quick(value):
                return None
        except RecursionError:
            pass  # the validator below says what it can
        if not slow:
            from firstchair.chat.schema_validator import validator_of

            slow.append(validator_of(schema))
        return _first_fault(slow[0], value)

    return check


def _first_fault(validator: Any, value: Any) -> SchemaFault | None:
    from jsonschema.exceptions import SchemaError, UnknownType
    from referencing.exceptions import Unresolvable

    from firstchair.chat.schema_validator import FAULTS

    try:
        errors = list(validator.iter_errors(value))
    except (SchemaError, UnknownType, Unresolvable, *FAULTS):
        # jsonschema meets a broken schema as whatever exception its keyword code happens to raise.
        return None
    if not errors:
        return None
    first = min(errors, key=lambda error: (len(error.absolute_path), path_text(error.absolute_path), error.message))
    message = first.message if len(first.message) <= 300 else first.message[:297] + "…"
    return SchemaFault(path_text(first.absolute_path), message)


_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "format", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment"}
)
_TYPES: Mapping[str, Check] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
}


def _predicate(schema: Any) -> Check | None:
    """``schema`` as a predicate, or ``None`` when it uses a keyword that is not compiled here."""
    if schema is True:
        return lambda value: True
    if not isinstance(schema, Mapping):
        return None
    checks: list[Check] = []
    for keyword, wanted in schema.items():
        if keyword in _ANNOTATIONS or keyword in {"properties", "required", "additionalProperties"}:
            continue
        make = _KEYWORDS.get(keyword)
        check = make(wanted) if make is not None else None
        if check is None:
            return None
        checks.append(check)
    if {"properties", "required", "additionalProperties"} & schema.keys():
        objects = _object_check(schema)
        if objects is None:
            return None
        checks.append(objects)
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _object_check(schema: Mapping[str, Any]) -> Check | None:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    if not all(isinstance(name, str) for name in required):
        return None
    fields = {name: _predicate(inner) for name, inner in properties.items()}
    rest = schema.get("additionalProperties", True)
    others: Check | None = (lambda value: False) if rest is False else _predicate(rest)
    if others is None or any(check is None for check in fields.values()):
        return None

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        for name in required:
            if name not in value:
                return False
        for name, inner in value.items():
            field = fields.get(name) or others
            if not field(inner):
                return False
        return True

    return check


def _type_check(wanted: Any) -> Check | None:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not names:
        return None
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        return None
    if len(names) == 1:
        return _TYPES[names[0]]
    checks = [_TYPES[name] for name in names]
    return lambda value: any(check(value) for check in checks)


def _enum_check(wanted: Any) -> Check | None:
    if not isinstance(wanted, list) or any(isinstance(item, dict | list) for item in wanted):
        return None
    # Python says True == 1; JSON Schema does not.
    allowed = {(isinstance(item, bool), item) for item in wanted}
    return lambda value: not isinstance(value, dict | list) and (isinstance(value, bool), value) in allowed


def _items_check(wanted: Any) -> Check | None:
    inner = _predicate(wanted)
    if inner is None:
        return None
    return lambda value: not isinstance(value, list) or all(inner(item) for item in value)


def _any_of_check(wanted: Any) -> Check | None:
    checks = [_predicate(item) for item in wanted] if isinstance(wanted, list) and wanted else [None]
    known = [check for check in checks if check is not None]
    if len(known) != len(checks):
        return None
    return lambda value: any(check(value) for check in known)


def _bound(applies: Check, holds: Callable[[Any, Any], bool]) -> Callable[[Any], Check | None]:
    def make(limit: Any) -> Check | None:
        if not _TYPES["number"](limit):
            return None
        return lambda value: not applies(value) or holds(value, limit)

    return make


_KEYWORDS: Mapping[str, Callable[[Any], Check | None]] = {
    "type": _type_check,
    "enum": _enum_check,
    "const": lambda wanted: _enum_check([wanted]),
    "items": _items_check,
    "anyOf": _any_of_check,
    "minimum": _bound(_TYPES["number"], lambda value, limit: value >= limit),
    "maximum": _bound(_TYPES["number"], lambda value, limit: value <= limit),
    "exclusiveMinimum": _bound(_TYPES["number"], lambda value, limit: value > limit),
    "exclusiveMaximum": _bound(_TYPES["number"], lambda value, limit: value < limit),
    "minLength": _bound(_TYPES["string"], lambda value, limit: len(value) >= limit),
    "maxLength": _bound(_TYPES["string"], lambda value, limit: len(value) <= limit),
    "minItems": _bound(_TYPES["array"], lambda value, limit: len(value) >= limit),
    "maxItems": _bound(_TYPES["array"], lambda value, limit: len(value) <= limit),
}
