"""The record that a promotion wants: a JSON file in which the gates say that they passed, for this very route.

    {"passed": true, "route": "local/orchestrator-4b", "slot": "desk", …}

``slot`` may be left out. Where the provider's configuration names a ``template_hash``, the record must name the same:
a model whose prompts are rendered otherwise is not the one that passed. Whatever else is there is kept with it in the
audit log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import loads_bytes
from firstchair.gateway.control.slots import Route

MAX_BYTES = 1_000_000


def read_gates(path: Path) -> dict[str, Any]:
    """The record in ``path``. Raises ``ConfigError``."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"gates: {path}: larger than {MAX_BYTES:,} bytes; expected the record of one gates run")
        record = loads_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"gates: {path}: {error.strerror}; expected the JSON record of the gates") from None
    except ValueError as error:
        raise ConfigError(f"gates: {path}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"gates: {path}: found {type(record).__name__}; expected a JSON object with `passed: true`")
    return record


def check_gates(record: Mapping[str, Any], slot: str, route: Route, template_hash: str | None = None) -> None:
    """Raises ``ConfigError`` unless the gates passed for this route (and slot, where the record names one).

    ``template_hash``: how the route's provider is configured to render prompts; ``None``: it does not say.
    """
    passed = record.get("passed")
    if passed is not True:
        raise ConfigError(
            f"gates.passed: found {passed!r}; expected true; better the candidate, or give a reason to override"
        )
    found = record.get("route")
    if isinstance(found, Mapping):
        found = f"{found.get('provider')}/{found.get('model')}"
    if found != str(route):
        raise ConfigError(
            f"gates.route: found {found!r}; expected {str(route)!r}; give the record of this very route"
        )
    if record.get("slot", slot) != slot:
        raise ConfigError(f"gates.slot: found {record['slot']!r}; expected {slot!r}; the gates ran for another slot")
    if template_hash is not None and record.get("template_hash") != template_hash:
        raise ConfigError(
            f"gates.template_hash: found {record.get('template_hash')!r}; expected {template_hash!r}, which "
            f"providers.{route.provider}.template_hash names; run the gates with the chat template that is served, "
            "or correct the configuration"
        )
