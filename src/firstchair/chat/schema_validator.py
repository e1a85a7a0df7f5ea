"""The JSON Schema validator that the slow path of ``chat.schema_check`` asks: jsonschema with patterns that end.

Python's ``re`` refuses patterns that JSON Schema allows (``\\p{L}``) and has no time limit, so a pattern such as
``^(a|aa)+$`` can search one argument for years. ``regex`` reads the former and stops the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend
from referencing import Registry

PATTERN_LIMIT_S = 0.25
"""Longest search of one text for one pattern. Past it the pattern is not checked: slow says nothing of the text."""

FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, regex.error)
"""What jsonschema's keywords happen to raise on a schema that is broken."""


def validator_of(schema: Mapping[str, Any]) -> Any:
    """A validator of ``schema``, with an empty registry: a ``$ref`` must never reach out to the network."""
    return _VALIDATOR(schema, registry=Registry())


def is_pattern(text: object) -> bool:
    """Whether ``text``, if it is one, can be compiled as a pattern."""
    if not isinstance(text, str):
        return True
    try:
        _compiled(text)
    except FAULTS:
        return False
    return True


FORMATS = FormatChecker(Draft202012Validator.FORMAT_CHECKER.checkers)
"""Formats that the JSON Schema of JSON Schema asks for."""
FORMATS.checkers["regex"] = (is_pattern, ())


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


def _occurs(pattern: str, text: str) -> bool | None:
    """Whether ``pattern`` occurs in ``text``; ``None`` when that takes too long to find out."""
    try:
        return _compiled(pattern).search(text, timeout=PATTERN_LIMIT_S) is not None
    except TimeoutError:
        return None


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and _occurs(pattern, value) is False:
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, inner in patterns.items():
            for key, item in value.items():
                if _occurs(pattern, key):
                    yield from validator.descend(item, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    patterns = schema.get("patternProperties")
    if patterns and isinstance(value, dict):
        # A name that some pattern matches, or may match, is not additional; the others answer to the plain rule.
        value = {key: item for key, item in value.items() if all(_occurs(one, key) is False for one in patterns)}
        schema = {**schema, "patternProperties": {}}
    yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, rest, value, schema)


def _unevaluated_properties(validator: Any, rest: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    # jsonschema finds the evaluated names with `re`; beside patterns this rare keyword is not checked.
    if "patternProperties" not in repr(schema):
        yield from Draft202012Validator.VALIDATORS["unevaluatedProperties"](validator, rest, value, schema)


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    try:
        yield from Draft202012Validator.VALIDATORS["multipleOf"](validator, step, value, schema)
    except OverflowError:  # an integer that no float holds
        if Fraction(value) % Fraction(str(step)):
            yield ValidationError(f"{value!r} is not a multiple of {step}")


_VALIDATOR: Any = extend(  # type: ignore[no-untyped-call] # the stubs leave it open
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
        "multipleOf": _multiple_of,
    },
)
