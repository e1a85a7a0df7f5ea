"""YAML as people write it by hand: what PyYAML would take silently or answer with a traceback is a ``ConfigError``.

A key that stands twice (the last would win: ``verified: false`` above, ``verified: true`` far below), an alias inside
what it names, an impossible date, an integer of thousands of digits, nesting without end.
"""

from __future__ import annotations

from typing import Any, NoReturn

import yaml

from firstchair.core.errors import ConfigError

MAX_DEPTH = 100
"""Mappings and lists inside each other. Enough for any schema, and far below where recursion ends."""


def read_yaml(text: str, source: str) -> Any:
    """``text`` as plain values. Raises ``ConfigError`` that opens with ``source`` and names the line."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            f"{where}: {problem}" if isinstance(error, _Refused) else f"{where}: not YAML: {problem}"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from None


class _Refused(yaml.MarkedYAMLError):
    """YAML that we do not take."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the checks above; all are made on nodes, which know their lines."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self._open: list[str | None] = []
        """Anchors, ``None`` for none, of the mappings and lists that the reader is inside of."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._open:
                _refuse(f"*{event.anchor} stands inside what it names; write it out", event)
            return super().compose_node(parent, index)
        if len(self._open) >= MAX_DEPTH:
            _refuse(f"nested more than {MAX_DEPTH} deep; write it flatter", event)
        self._open.append(event.anchor)
        node = super().compose_node(parent, index)
        self._open.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], Any] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                first = seen.setdefault((key.tag, key.value), key)
                if first is not key:
                    line = first.start_mark.line + 1
                    _refuse(f"key {key.value!r} stands twice, first on line {line}; keep one", key)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            _refuse(f"{str(node.value)[:40]!r} cannot be read: {error}; quote it if it is text", node)


def _refuse(problem: str, where: Any) -> NoReturn:
    raise _Refused(problem=problem, problem_mark=where.start_mark)
