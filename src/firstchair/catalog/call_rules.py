"""How the calls of a whole catalog are compared: field matchers by tool, the recorded name map, harmless extras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from firstchair.catalog.fields import FieldRules
from firstchair.core.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Matchers:
    """The comparison rules of a catalog. Compared by identity: build it once and pass it on."""

    fields: Mapping[str, FieldRules] = field(default_factory=lambda: MappingProxyType({}))
    """Tool → its field matchers; a tool that is not here is compared by type alone."""
    tool_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Name on the wire → name in the catalog: the map that the gateway itself applied, nothing looser."""
    read_only: frozenset[str] = frozenset()
    """Tools without effects."""
    extra_read_only: int = 0
    """How many read-only calls beside the wanted ones a decision may make and still pass leniently."""

    def tool_name(self, name: str) -> str:
        """The catalog's name of the tool that a reply calls ``name``."""
        return self.tool_names.get(name, name)

    @classmethod
    def of(
        cls,
        declared: Mapping[str, Mapping[str, str]],
        *,
        tool_names: Mapping[str, str] | None = None,
        read_only: Iterable[str] = (),
        extra_read_only: int = 0,
    ) -> Matchers:
        """Compile ``{tool: {field path: matcher spec}}``. Raises ``ConfigError`` naming tool and field."""
        fields: dict[str, FieldRules] = {}
        for tool, table in declared.items():
            try:
                fields[tool] = FieldRules.of(table)
            except ConfigError as error:
                raise ConfigError(f"tool {tool}: {error}") from None
        return cls(
            fields=MappingProxyType(fields),
            tool_names=MappingProxyType(dict(tool_names or {})),
            read_only=frozenset(read_only),
            extra_read_only=extra_read_only,
        )
