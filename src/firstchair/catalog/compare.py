"""Do two argument objects mean the same? Typed by the tool's JSON Schema, over the union of keys, at every depth.

Order of rules: schema defaults are filled in on both sides; a field with a declared matcher is compared by it;
everything else by type: numbers by value (``1`` is ``1.0``, never ``true``), objects without regard to key order,
arrays as sequences unless the schema says ``uniqueItems`` or the catalog says ``set``, texts exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec

from firstchair.catalog.fields import ROOT, FieldRules, show_key
from firstchair.catalog.matchers import Match, typed_equal
from firstchair.core.jsontext import canonical

MAX_ASSIGNED = 64
"""Unequal set elements that are paired by rule; more are not worth a cubic search and count as different."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""A key that one side does not have, and for which the schema names no default."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place where the sides are not shown to be the same."""

    field: str
    rule: str
    """A matcher's name, or ``value``, ``type``, ``missing``, ``extra``, ``length``, ``format``."""
    undecided: bool = False


@dataclass
class Comparison:
    """What a comparison found. ``used`` names the rules that made unequal texts equal, with their fields."""

    differences: list[Difference] = field(default_factory=list)
    used: list[tuple[str, str]] = field(default_factory=list)

    @property
    def match(self) -> Match:
        """Different if any field is; else undecided if any field is; else the same."""
        if not self.differences:
            return Match.SAME
        return Match.UNDECIDED if all(found.undecided for found in self.differences) else Match.DIFFERENT


class Shape:
    """A node of a compiled schema: what is known about the values at one field path."""

    __slots__ = ("_children", "_items", "_schema", "_top", "format", "matcher", "rules", "unordered")

    def __init__(self, schema: Any, top: Any, rules: tuple[FieldRules, ...] = ()):
        self._top = top
        self._schema = _flatten(schema, top)
        self.rules = rules
        self.matcher = next((rule.matcher for rule in rules if rule.matcher), None)
        self.format: str | None = self._schema.get("format")
        self.unordered = self._schema.get("uniqueItems") is True or (
            self.matcher is not None and self.matcher.name == "set"
        )
        self._children: dict[str, Shape] = {}
        self._items: dict[int, Shape] = {}

    def child(self, key: str) -> Shape:
        """The node of ``key`` (of a declared property, or of what may stand beside those)."""
        found = self._children.get(key)
        if found is None:
            properties = self._schema.get("properties")
            schema = properties.get(key) if isinstance(properties, dict) else None
            if schema is None:
                schema = self._schema.get("additionalProperties")
            rules = [rule.keys[key] for rule in self.rules if key in rule.keys]
            rules += [rule.any_key for rule in self.rules if rule.any_key]
            found = self._children[key] = Shape(schema, self._top, tuple(rules))
        return found

    def item(self, index: int) -> Shape:
        """The node of an array's element."""
        prefix = self._schema.get("prefixItems")
        fixed = len(prefix) if isinstance(prefix, list) else 0
        slot = index if index < fixed else -1
        found = self._items.get(slot)
        if found is None:
            schema = prefix[index] if index < fixed and isinstance(prefix, list) else self._schema.get("items")
            rules = tuple(rule.items for rule in self.rules if rule.items)
            found = self._items[slot] = Shape(schema, self._top, rules)
        return found

    def defaults(self) -> Mapping[str, Any]:
        """Declared defaults of the properties."""
        properties = self._schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        return {
            key: _flatten(schema, self._top)["default"]
            for key, schema in properties.items()
            if "default" in _flatten(schema, self._top)
        }


def _flatten(schema: Any, top: Any, depth: int = 0) -> dict[str, Any]:
    """``schema`` with ``$ref``, ``allOf`` and alternatives merged, as far as comparison needs them.

    The first of ``anyOf``/``oneOf`` that says something wins: in practice they spell optional values.
    """
    if not isinstance(schema, dict) or depth > 16:
        return {}
    if not ("$ref" in schema or "allOf" in schema or "anyOf" in schema or "oneOf" in schema):
        return schema
    merged: dict[str, Any] = {}
    sources = [schema]
    if isinstance(reference := schema.get("$ref"), str):
        sources.append(_resolve(reference, top))
    for word in ("allOf", "anyOf", "oneOf"):
        members = schema.get(word)
        sources += members if isinstance(members, list) else []
    for number, source in enumerate(sources):
        flat = source if number == 0 else _flatten(source, top, depth + 1)
        for key, value in flat.items():
            if key == "properties" and isinstance(value, dict):
                before = merged.get("properties")
                merged["properties"] = {**value, **before} if isinstance(before, dict) else value
            else:
                merged.setdefault(key, value)
    return merged


def _resolve(reference: str, top: Any) -> Any:
    if not reference.startswith("#"):
        return {}
    node = top
    for part in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        name = part.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, dict) else None
    return node


def compile_shape(parameters: Mapping[str, Any], rules: FieldRules | None = None) -> Shape:
    """The comparer of one tool: its parameter schema and its field matchers."""
    return Shape(parameters, parameters, (rules,) if rules else ())


def compare(shape: Shape, gold: Any, made: Any) -> Comparison:
    """Compare two JSON values (usually argument objects) field by field."""
    out = Comparison()
    _walk(shape, gold, made, "", out)
    return out


def _walk(shape: Shape, gold: Any, made: Any, path: str, out: Comparison) -> None:
    if shape.matcher is not None and shape.matcher.name != "set":
        _by_matcher(shape, gold, made, path, out)
    elif gold is MISSING or made is MISSING:
        out.differences.append(Difference(path, "extra" if gold is MISSING else "missing"))
    else:
        _by_type(shape, gold, made, path, out)


def _by_type(shape: Shape, gold: Any, made: Any, path: str, out: Comparison) -> None:
    if isinstance(gold, dict) and isinstance(made, dict):
        _objects(shape, gold, made, path, out)
    elif isinstance(gold, list) and isinstance(made, list):
        (_sets if shape.unordered else _sequences)(shape, gold, made, path, out)
    else:
        _scalars(gold, made, path, out)


def _by_matcher(shape: Shape, gold: Any, made: Any, path: str, out: Comparison) -> None:
    matcher = shape.matcher
    assert matcher is not None
    if (gold is MISSING and made is MISSING) or typed_equal(gold, made):
        return
    if matcher.name == "ignore":
        out.used.append(("ignore", path))
        return
    if gold is MISSING or made is MISSING:
        out.differences.append(Difference(path, "extra" if gold is MISSING else "missing"))
        return
    if matcher.name == "exact" or isinstance(gold, list | dict):
        inner = _below(shape, gold, made, path)
        if matcher.name == "judge" and inner.match is Match.DIFFERENT:
            out.differences.append(Difference(path or ROOT, "judge", undecided=True))
        else:
            out.differences += inner.differences
            out.used += inner.used
        return
    if matcher.name == "date" and not _has_format(shape.format, made):
        out.differences.append(Difference(path, "format"))
        return
    answer = matcher.compare(gold, made)
    if answer is Match.SAME:
        out.used.append((matcher.name, path))
    else:
        undecided = answer is Match.UNDECIDED
        out.differences.append(Difference(path or ROOT, matcher.name, undecided=undecided))


def _below(shape: Shape, gold: Any, made: Any, path: str) -> Comparison:
    """Compare by type where a matcher stands on a list or an object: a text rule holds for each element."""
    matcher = shape.matcher
    assert matcher is not None
    out = Comparison()
    spread = matcher.name not in ("exact", "judge")
    if isinstance(gold, list) and isinstance(made, list) and spread and len(gold) == len(made):
        for index, (first, second) in enumerate(zip(gold, made, strict=True)):
            element = Shape({"format": shape.item(index).format}, {}, shape.rules)
            _walk(element, first, second, f"{path}[{index}]", out)
    else:
        _by_type(shape, gold, made, path, out)
    return out


def _objects(shape: Shape, gold: dict[str, Any], made: dict[str, Any], path: str, out: Comparison) -> None:
    if gold.keys() != made.keys():
        defaults = shape.defaults()
        for key, value in defaults.items():
            if (key in gold) != (key in made):
                out.used.append(("default", show_key(path, key)))
                gold, made = {key: value, **gold}, {key: value, **made}
    for key in [*gold, *(key for key in made if key not in gold)]:
        _walk(shape.child(key), gold.get(key, MISSING), made.get(key, MISSING), show_key(path, key), out)


def _sequences(shape: Shape, gold: list[Any], made: list[Any], path: str, out: Comparison) -> None:
    if len(gold) != len(made):
        out.differences.append(Difference(path or ROOT, "length"))
        return
    for index, (first, second) in enumerate(zip(gold, made, strict=True)):
        _walk(shape.item(index), first, second, f"{path}[{index}]", out)


def _sets(shape: Shape, gold: list[Any], made: list[Any], path: str, out: Comparison) -> None:
    if len(gold) != len(made):
        out.differences.append(Difference(path or ROOT, "length"))
        return
    if all(map(typed_equal, gold, made)):
        return
    # Equal elements pair off first; a list of them by their text keeps this linear.
    right_by_text: dict[str, list[int]] = {}
    for index, element in enumerate(made):
        right_by_text.setdefault(canonical(element), []).append(index)
    left: list[Any] = []
    for element in gold:
        twins = right_by_text.get(canonical(element))
        if twins:
            twins.pop()
        else:
            left.append(element)
    right = [made[index] for indices in right_by_text.values() for index in indices]
    if not left:
        out.used.append(("set", path))
        return
    if len(left) > MAX_ASSIGNED:
        out.differences.append(Difference(path or ROOT, "set"))
        return
    element_shape = shape.item(0)
    grid = [[compare(element_shape, first, second) for second in right] for first in left]
    worst = max((grid[row][column] for row, column in best_assignment(grid)), key=_cost)
    if worst.match is Match.SAME:
        out.used += [("set", path), *((rule, f"{path}[]") for rule, _ in worst.used)]
    else:
        undecided = worst.match is Match.UNDECIDED
        out.differences.append(Difference(path or ROOT, "set", undecided=undecided))


def _cost(found: Comparison) -> int:
    """How far a pairing is from the same: any definite difference outweighs all undecided ones."""
    return sum(1 if difference.undecided else 10_000 for difference in found.differences)


def best_assignment(grid: Sequence[Sequence[Comparison]]) -> list[tuple[int, int]]:
    """Pair rows with columns one to one at the least total difference; ``grid`` may be oblong.

    One produced call or element can therefore never stand for two wanted ones.
    """
    costs = [[_cost(found) for found in row] for row in grid]
    if len(costs) == 1 and costs[0]:
        return [(0, min(range(len(costs[0])), key=costs[0].__getitem__))]
    # scipy takes a third of a second to import; runs without parallel calls never need it.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]


def _scalars(gold: Any, made: Any, path: str, out: Comparison) -> None:
    if type(gold) is type(made):
        if gold != made:
            out.differences.append(Difference(path or ROOT, "value"))
    elif _is_number(gold) and _is_number(made):
        if gold == made:
            out.used.append(("numeric", path))
        else:
            out.differences.append(Difference(path or ROOT, "value"))
    else:
        out.differences.append(Difference(path or ROOT, "type"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@lru_cache(maxsize=1)
def _format_checker() -> Any:
    from jsonschema import FormatChecker

    return FormatChecker()


def _has_format(name: str | None, value: Any) -> bool:
    """Whether a text has the date format that the schema demands; other formats are not ours to judge."""
    if name not in ("date", "time", "date-time") or not isinstance(value, str):
        return True
    if name == "date-time":
        # jsonschema checks this one only with an extra package; RFC 3339 asks for a full date and a full time.
        from datetime import datetime

        try:
            return "T" in value.upper() and datetime.fromisoformat(value).tzinfo is not None
        except ValueError:
            return False
    return bool(_format_checker().conforms(value, name))
