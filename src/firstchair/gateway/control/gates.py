"""The record that a promotion wants: what ``firstchair gates check`` wrote, sealed, for this very route and slot.

A record is refused when its content hash is missing or does not match, when a verdict in it is not what its own
figures give, when a gate did not pass, or when it is of another route or slot. Where the provider's configuration
names a ``template_hash``, the record must name the same: a model whose prompts are rendered otherwise is not the one
that passed. The whole record is kept in the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import loads_bytes
from firstchair.evals.gate_record import opened
from firstchair.gateway.control.slots import Route

MAX_BYTES = 1_000_000


def read_gates(path: Path) -> dict[str, Any]:
    """The record in ``path``. Raises ``ConfigError``."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"gates: {path}: larger than {MAX_BYTES:,} bytes; expected the record of one gates run")
        record = loads_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"gates: {path}: {error.strerror}; expected the record of `firstchair gates check`"
        ) from None
    except ValueError as error:
        raise ConfigError(f"gates: {path}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError(
            f"gates: {path}: found {type(record).__name__}; expected the record of `firstchair gates check`"
        )
    return record


def check_gates(record: Mapping[str, Any], slot: str, route: Route, template_hash: str | None = None) -> None:
    """Raises ``ConfigError`` unless this is a sealed record in which all six gates passed for this route and slot.

    ``template_hash``: how the route's provider is configured to render prompts; ``None``: it does not say.
    """
    found = opened(record, "promotion")
    if not found.passed:
        missed = ", ".join(f"{gate.name} {gate.verdict}" for gate in found.gates if gate.verdict != "pass")
        raise ConfigError(
            f"gates.passed: found False ({missed}); expected True; better the candidate, or give a reason to override"
        )
    if found.route != str(route):
        raise ConfigError(
            f"gates.route: found {found.route!r}; expected {str(route)!r}; give the record of this very route"
        )
    if found.slot != slot:
        raise ConfigError(f"gates.slot: found {found.slot!r}; expected {slot!r}; the gates ran for another slot")
    if template_hash is not None and found.template_hash != template_hash:
        raise ConfigError(
            f"gates.template_hash: found {found.template_hash!r}; expected {template_hash!r}, which "
            f"providers.{route.provider}.template_hash names; run the gates with the chat template that is served, "
            "or correct the configuration"
        )
