"""A fast yes to the common schema: for values that are plainly valid, before the full validator is asked why not.

Handles ``type``, ``properties``, ``required``, ``additionalProperties: false``, ``items``, ``enum`` and annotations.
A schema with any other keyword has no quick check. ``False`` means "not plainly valid", never "invalid".
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

Check = Callable[[Any], bool]

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "strict"}
)
_HANDLED = frozenset({"type", "properties", "required", "additionalProperties", "items", "enum"})

_TYPES = MappingProxyType(
    {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None), "integer": int, "number": int}
)


def quick_check(schema: Any) -> Check | None:
    """Compile ``schema``; ``None`` when it says more than a quick check understands."""
    if not isinstance(schema, dict) or not (schema.keys() <= _ANNOTATIONS | _HANDLED):
        return None
    checks: list[Check] = []
    if "type" in schema:
        kind = schema["type"]
        if not isinstance(kind, str) or kind not in _TYPES:
            return None
        checks.append(_type_check(kind))
    if "enum" in schema:
        allowed = schema["enum"]
        if not isinstance(allowed, list) or not all(isinstance(value, str) for value in allowed):
            return None
        checks.append(frozenset(allowed).__contains__ if schema.get("type") == "string" else _string_in(allowed))
    for compile_part in (_object_check, _items_check):
        part = compile_part(schema)
        if part is None:
            return None
        checks += part
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _type_check(kind: str) -> Check:
    wanted = _TYPES[kind]
    # bool is an int in Python and none in JSON; floats that are whole are left to the full validator.
    if kind == "number":
        return lambda value: type(value) is int or type(value) is float
    return lambda value: type(value) is wanted


def _string_in(allowed: list[str]) -> Check:
    return lambda value: isinstance(value, str) and value in allowed


def _object_check(schema: dict[str, Any]) -> list[Check] | None:
    """No check when the schema says nothing of objects; ``None`` when it says something unknown."""
    if not schema.keys() & {"properties", "required", "additionalProperties"}:
        return []
    properties, required = schema.get("properties", {}), schema.get("required", [])
    extra = schema.get("additionalProperties", True)
    if schema.get("type") != "object" or not isinstance(extra, bool) or not isinstance(properties, dict):
        return None
    compiled = {key: quick_check(inner) for key, inner in properties.items()}
    if None in compiled.values() or not isinstance(required, list):
        return None

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for key in required:
            if key not in value:
                return False
        for key, inner in value.items():
            rule = compiled.get(key)
            if rule is None:
                if not extra:
                    return False
            elif not rule(inner):
                return False
        return True

    return [check]


def _items_check(schema: dict[str, Any]) -> list[Check] | None:
    if "items" not in schema:
        return []
    rule = quick_check(schema["items"])
    if schema.get("type") != "array" or rule is None:
        return None
    return [lambda value: isinstance(value, list) and all(map(rule, value))]
