"""Reading ``{"name": …, "arguments": …}`` out of longer text, with the arguments' own bytes kept."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from firstchair.core.jsontext import JsonProblem, loads_at

ARGUMENT_KEYS = ("arguments", "input", "parameters")
"""Names under which the arguments of a call may stand; each format writes one and reads all."""

_IGNORED_KEYS = frozenset({"id", "type"})
_SPACE = re.compile(r"[ \t\n\r]*")
_USUAL = re.compile(
    r'\{[ \t\n\r]*"name"[ \t\n\r]*:[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*,'
    r'[ \t\n\r]*"(?:arguments|input|parameters)"[ \t\n\r]*:[ \t\n\r]*'
)
_NAME = re.compile(r'"name"[ \t\n\r]*:[ \t\n\r]*"([^"\\\n]*)"')
_ARGUMENTS = re.compile(r'"(?:arguments|input|parameters)"[ \t\n\r]*:[ \t\n\r]*')


@dataclass(frozen=True, slots=True)
class JsonCall:
    """One call object as it stood in the text."""

    name: str
    arguments: str
    """The bytes of the arguments; ``{}`` when the key is missing."""
    value: Any
    """The arguments parsed."""
    call_id: str | None
    end: int
    """Index after the object."""


def skip_space(text: str, start: int) -> int:
    """Index of the first character at or after ``start`` that is not JSON white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def read_call(text: str, start: int) -> JsonCall:
    """Read the call object that begins at ``text[start]``; raises ``JsonProblem``."""
    match = _USUAL.match(text, start)
    if match is not None:
        value, end = loads_at(text, match.end())
        after = skip_space(text, end)
        if text.startswith("}", after):
            return JsonCall(match[1], text[match.end() : end], value, None, after + 1)
    return _read_any_order(text, start)


def _read_any_order(text: str, start: int) -> JsonCall:
    fields, end = scan_object(text, start)
    name = fields.pop("name", (None, 0, 0))[0]
    if not isinstance(name, str):
        raise JsonProblem("not_a_call", 'the call object has no "name" text')
    found = [key for key in ARGUMENT_KEYS if key in fields]
    if len(found) > 1:
        raise JsonProblem("not_a_call", f"the call object has both {found[0]!r} and {found[1]!r}")
    value, first, last = fields.pop(found[0]) if found else ({}, 0, 0)
    call_id = fields["id"][0] if "id" in fields and isinstance(fields["id"][0], str) else None
    unknown = sorted(fields.keys() - _IGNORED_KEYS)
    if unknown:
        raise JsonProblem("not_a_call", f"the call object has the unknown key {unknown[0]!r}")
    return JsonCall(name, text[first:last] if found else "{}", value, call_id, end)


def scan_object(text: str, start: int) -> tuple[dict[str, tuple[Any, int, int]], int]:
    """The fields of the JSON object at ``text[start]`` with the place of each value, and the index after it.

    Raises ``JsonProblem`` as ``loads_at`` does.
    """
    if not text.startswith("{", start):
        raise JsonProblem("syntax", f"expected an object at character {start}")
    fields: dict[str, tuple[Any, int, int]] = {}
    position = skip_space(text, start + 1)
    if text.startswith("}", position):
        return fields, position + 1
    while True:
        if not text.startswith('"', position):
            raise JsonProblem("syntax", f"expected a key in double quotes at character {position}")
        try:
            key, position = scanstring(text, position + 1)
        except json.JSONDecodeError as error:
            raise JsonProblem("syntax", f"{error.msg} at character {error.pos}") from None
        position = skip_space(text, position)
        if not text.startswith(":", position):
            raise JsonProblem("syntax", f"expected ':' at character {position}")
        first = skip_space(text, position + 1)
        value, last = loads_at(text, first)
        if key in fields:
            raise JsonProblem("duplicate_key", f"key {key!r} stands twice in one object; keep one")
        fields[key] = (value, first, last)
        position = skip_space(text, last)
        if text.startswith("}", position):
            return fields, position + 1
        if not text.startswith(",", position):
            raise JsonProblem("syntax", f"expected ',' or '}}' at character {position}")
        position = skip_space(text, position + 1)


def guess_parts(block: str) -> tuple[str, str]:
    """Name and argument text of a call that is not valid JSON, as far as they can be told.

    The name is empty when there is none. The arguments run to the end of the block, less the brace that closes
    the call, so that writing the call again gives the same bytes.
    """
    name = _NAME.search(block)
    arguments = _ARGUMENTS.search(block)
    if arguments is None:
        return (name[1] if name else ""), block
    return (name[1] if name else ""), block[arguments.end() :].rstrip().removesuffix("}")
