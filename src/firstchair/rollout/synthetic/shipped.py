"""The domains that come with the package, and any other in a file, by name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from firstchair.core.errors import ConfigError
from firstchair.rollout.synthetic.domain import Domain, parse_domain, read_domain

SHIPPED = (
    "airline",
    "clinic",
    "fleet",
    "hotel",
    "library",
    "payroll",
    "property",
    "retail",
    "telecom",
    "tickets",
)
"""Made by `examples/synthetic_domains/generate.py`."""


def shipped_domain(name: str) -> Domain:
    """One of ``SHIPPED``."""
    place = resources.files("firstchair.rollout.synthetic") / "domains" / f"{name}.json"
    return parse_domain(place.read_text(encoding="utf-8"), source=f"{name}.json")


def load_domains(names: Iterable[str] = ()) -> list[Domain]:
    """Shipped domains by name, others by the path of their JSON file; all shipped ones when none is named.

    Raises ``ConfigError`` for a name that is neither or stands twice, ``DataError`` for a file that is no domain.
    """
    found: list[Domain] = []
    for name in tuple(names) or SHIPPED:
        if name in SHIPPED:
            domain = shipped_domain(name)
        elif name.endswith(".json"):
            domain = read_domain(Path(name))
        else:
            raise ConfigError(
                f"domain {name!r}: expected one of {', '.join(SHIPPED)}, or the path of a domain's .json file"
            )
        if domain.name in {other.name for other in found}:
            raise ConfigError(f"domain {name!r}: a domain named {domain.name} is there already; name each once")
        found.append(domain)
    return found
