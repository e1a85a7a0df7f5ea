"""Field paths below a call's arguments, and which matcher stands at which field.

``query`` · ``filter.name`` · ``items[].due`` (every element) · ``headers.*`` (every key) · ``["a.b"]`` (a key
with a dot) · ``$`` (the arguments as a whole).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from firstchair.catalog.matchers import Matcher, parse_matcher
from firstchair.core.errors import ConfigError

ROOT = "$"
ITEMS = "[]"
ANY_KEY = "*"

_SEGMENT = re.compile(r"\.?(?P<quoted>\[\"(?:[^\"\\]|\\.)*\"\])|(?P<items>\[\])|\.?(?P<name>[^.\[\]\"]+)")


@dataclass(frozen=True)
class Key:
    """A segment that names one key of an object."""

    name: str


Segment = Key | str
"""A named key, ``ITEMS`` or ``ANY_KEY``."""


def parse_field(text: str) -> tuple[Segment, ...]:
    """Read a field path; ``$`` is the empty path. Raises ``ConfigError`` on bad syntax."""
    if text == ROOT:
        return ()
    out: list[Segment] = []
    position = 0
    while position < len(text):
        found = _SEGMENT.match(text, position)
        if found is None or (found.group().startswith(".") and position == 0):
            break
        if found["quoted"]:
            out.append(Key(json.loads(found["quoted"][1:-1])))
        elif found["items"]:
            out.append(ITEMS)
        else:
            out.append(ANY_KEY if found["name"] == ANY_KEY else Key(found["name"]))
        position = found.end()
    if not out or position != len(text):
        raise ConfigError(f'field {text!r}: expected a path like query, filter.name, items[].due, ["a.b"] or $')
    return tuple(out)


def show_key(parent: str, key: str) -> str:
    """The path of ``key`` below ``parent``, as ``parse_field`` reads it."""
    if re.fullmatch(r"[^.\[\]\"*$]+", key):
        return f"{parent}.{key}" if parent else key
    return f"{parent}[{json.dumps(key, ensure_ascii=False)}]"


@dataclass
class FieldRules:
    """A tree of matchers: the one at this field, and those below it."""

    matcher: Matcher | None = None
    keys: dict[str, FieldRules] = field(default_factory=dict)
    any_key: FieldRules | None = None
    items: FieldRules | None = None

    def add(self, path: tuple[Segment, ...], matcher: Matcher) -> None:
        """Place ``matcher`` at ``path``."""
        if not path:
            self.matcher = matcher
            return
        first, rest = path[0], path[1:]
        if isinstance(first, Key):
            child = self.keys.setdefault(first.name, FieldRules())
        elif first == ITEMS:
            child = self.items = self.items or FieldRules()
        else:
            child = self.any_key = self.any_key or FieldRules()
        child.add(rest, matcher)

    @classmethod
    def of(cls, declared: Mapping[str, str]) -> FieldRules:
        """Rules from ``{field path: matcher spec}``. Raises ``ConfigError`` naming the field."""
        rules = cls()
        for path, spec in declared.items():
            segments = parse_field(path)
            try:
                rules.add(segments, parse_matcher(spec))
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
        return rules
