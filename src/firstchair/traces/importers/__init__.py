"""Foreign recordings as sessions: one module a format, one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from firstchair.core.errors import ConfigError
from firstchair.traces.importers.anthropic import import_anthropic
from firstchair.traces.importers.base import Imported, Importer, ImportOptions
from firstchair.traces.importers.conversations import import_conversations
from firstchair.traces.importers.firstchair import import_firstchair
from firstchair.traces.importers.openai import import_openai
from firstchair.traces.importers.otel import import_otel
from firstchair.traces.importers.tau import import_tau

IMPORTERS: Mapping[str, Importer] = MappingProxyType(
    {
        "openai": import_openai,
        "anthropic": import_anthropic,
        "conversations": import_conversations,
        "tau": import_tau,
        "otel": import_otel,
        "firstchair": import_firstchair,
    }
)
"""Format name → importer."""


def importer(name: str) -> Importer:
    """The importer of a format. Raises ``ConfigError`` for an unknown one."""
    if name not in IMPORTERS:
        raise ConfigError(f"format {name!r} is unknown; use one of {', '.join(IMPORTERS)}")
    return IMPORTERS[name]


__all__ = ["IMPORTERS", "ImportOptions", "Imported", "Importer", "importer"]
