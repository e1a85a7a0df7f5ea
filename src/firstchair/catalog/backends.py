"""Where an expert is asked: an explicit route, else an endpoint of one's own, else its provider, else OpenRouter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from firstchair.catalog.experts import Expert, ExpertCatalog, Provider
from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.core.errors import ConfigError

Dialect = Literal["openai", "anthropic", "gemini"]

FREE = ModelPrice(input=0, output=0)
"""Of a server of one's own."""


class Vendor(NamedTuple):
    """What is known of a provider's API."""

    title: str
    dialect: Dialect
    base_url: str
    key_env: str


VENDORS: Mapping[Provider, Vendor] = MappingProxyType(
    {
        "openai": Vendor("OpenAI", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        "anthropic": Vendor("Anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        "gemini": Vendor("Gemini", "gemini", "https://generativelanguage.googleapis.com/v1beta", "GEMINI_API_KEY"),
        "openrouter": Vendor("OpenRouter", "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        "local": Vendor("a local endpoint", "openai", "", ""),
    }
)


@dataclass(frozen=True)
class Backend:
    """One server that can answer for an expert."""

    provider: Provider
    base_url: str
    model: str
    """As the server calls it."""
    key_env: str
    """Environment variable of its key; empty: none is needed."""

    @property
    def dialect(self) -> Dialect:
        """Which API is spoken."""
        return VENDORS[self.provider].dialect

    def price(self, table: PriceTable) -> ModelPrice | None:
        """0 at a local endpoint, else what ``table`` says; ``None`` when it says nothing."""
        return FREE if self.provider == "local" else table.price(self.model, self.provider)


def backends(expert: Expert, catalog: ExpertCatalog) -> tuple[Backend, ...]:
    """Every server that may answer for ``expert``, best first, whether its key is there or not.

    A route or an endpoint that somebody named stands alone: what is to run here never goes to a paid API instead.
    """
    route = catalog.routes.get(expert.name)
    if route is not None:
        vendor = VENDORS[route.provider]
        return (
            Backend(route.provider, route.base_url or vendor.base_url, route.model, route.key_env or vendor.key_env),
        )
    endpoint = catalog.endpoints.get(expert.name)
    if endpoint is not None:
        return (Backend("local", endpoint, expert.model, ""),)
    found: list[Backend] = []
    if expert.native is not None:
        vendor = VENDORS[expert.native]
        found.append(Backend(expert.native, vendor.base_url, expert.model.rpartition("/")[2], vendor.key_env))
    if expert.openrouter:
        vendor = VENDORS["openrouter"]
        found.append(Backend("openrouter", vendor.base_url, expert.openrouter, vendor.key_env))
    return tuple(found)


def resolve(expert: Expert, catalog: ExpertCatalog, environ: Mapping[str, str]) -> Backend:
    """The first of ``backends`` whose key is in ``environ``. Raises ``ConfigError`` saying what is missing."""
    possible = backends(expert, catalog)
    for backend in possible:
        if not backend.key_env or environ.get(backend.key_env):
            return backend
    if expert.name in catalog.routes:
        key = possible[0].key_env
        raise ConfigError(f"routes.{expert.name} comes first, and its environment variable {key} is not set")
    keys = " or ".join(f"{one.key_env} ({VENDORS[one.provider].title})" for one in possible)
    need = f"neither is set: {keys}" if len(possible) > 1 else f"not set: {keys}" if keys else "no provider is named"
    raise ConfigError(need)


def unreachable(missing: Mapping[str, str]) -> str:
    """What is missing (expert → that), a line for all experts that lack the same, and at the end what can be done."""
    names: dict[str, list[str]] = {}
    for name, need in missing.items():
        names.setdefault(need, []).append(name)
    lines = [
        f"expert{'' if len(lacking) == 1 else 's'} {', '.join(lacking)} cannot be reached: {need}"
        for need, lacking in names.items()
    ]
    name, them = (next(iter(missing)), "it") if len(missing) == 1 else ("NAME", "them")
    return "\n".join(lines) + f"; set a key, give endpoints.{name} a server of your own, or exclude {them}"


def reachable(catalog: ExpertCatalog, environ: Mapping[str, str]) -> tuple[dict[str, Backend], dict[str, str]]:
    """Expert → backend for those that can be asked, and expert → what is missing for the others."""
    found: dict[str, Backend] = {}
    missing: dict[str, str] = {}
    for expert in catalog.experts:
        try:
            found[expert.name] = resolve(expert, catalog, environ)
        except ConfigError as error:
            missing[expert.name] = str(error)
    return found, missing


def listed_price(expert: Expert, catalog: ExpertCatalog, table: PriceTable) -> ModelPrice | None:
    """What ``expert`` costs at the first of its servers that ``table`` has a price for. Needs no key.

    ``None``: no price is known; it is never guessed from another model's.
    """
    prices = (backend.price(table) for backend in backends(expert, catalog))
    return next((price for price in prices if price is not None), None)
