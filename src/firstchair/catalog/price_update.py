"""New prices from OpenRouter's list of models, or from a table of one's own, and what they change.

    GET /api/v1/models → {"data": [{"id": "qwen/qwen3-32b", "pricing": {"prompt": "0.0000001", …}}, …]}

Prices there are US dollars a token, as text. What a table cannot say exactly is left out with its reason, never
rounded and never guessed: a fee for each request, reasoning at a price of its own, a discount, no fixed price at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import yaml
from pydantic import ValidationError

from firstchair.catalog.prices import MILLION, ModelPrice, PriceFile
from firstchair.catalog.token_counts import NANO
from firstchair.core.config import validate, words_of
from firstchair.core.errors import ConfigError, DataError, UpstreamError
from firstchair.core.jsontext import JsonProblem, dumps, loads
from firstchair.core.yamltext import read_yaml

TIMEOUT_S = 30.0
MAX_BYTES = 64 * 1024 * 1024
"""Of a list of models; a longer answer is something else."""

Prices = Mapping[str, ModelPrice]

_COUNTERS = {
    "prompt": "input",
    "completion": "output",
    "input_cache_read": "cache_read",
    "input_cache_write": "cache_write_5m",
    "input_cache_write_1h": "cache_write_1h",
}
"""OpenRouter's names → ours. Its plain cache write is the one of five minutes."""


@dataclass(frozen=True)
class Quotes:
    """The prices of a source."""

    models: dict[str, ModelPrice]
    left_out: dict[str, str]
    """Model → why its price cannot be told by a table."""


@dataclass(frozen=True)
class PriceUpdate:
    """A table after an update, and what is new in it."""

    models: dict[str, ModelPrice]
    changed: dict[str, tuple[ModelPrice, ModelPrice]]
    """Model → price before and after."""
    added: dict[str, ModelPrice]
    same: int
    """Quotes that were in effect already."""


def fetch(source: str) -> str:
    """The text at an address, or of a file. Raises ``UpstreamError`` or ``ConfigError``."""
    if not source.startswith(("http://", "https://")):
        try:
            return Path(source).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{source}: {error.strerror}; expected a file or an http address") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source}: neither JSON nor YAML: {error}") from None
    try:
        with httpx.stream("GET", source, timeout=TIMEOUT_S, follow_redirects=True) as response:
            if response.status_code != 200:
                raise UpstreamError(f"{source}: HTTP {response.status_code}", status=response.status_code)
            data = bytearray()
            for block in response.iter_bytes():
                data += block
                if len(data) > MAX_BYTES:
                    raise UpstreamError(f"{source}: more than {MAX_BYTES:,} bytes; expected a list of models")
            return data.decode("utf-8", "replace")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UpstreamError(f"{source}: {type(error).__name__}: {error}", retryable=True) from error


def read_quotes(text: str, source: str) -> Quotes:
    """Prices in a list of OpenRouter's models (JSON with ``data``) or in a table like prices.yaml.

    Raises ``ConfigError`` or ``DataError`` naming the field.
    """
    if text.lstrip().startswith("{"):
        try:
            value = loads(text)
        except JsonProblem as error:
            raise DataError(f"not strict JSON: {error}", path=source) from None
        if isinstance(value, dict) and "data" in value:
            return _from_openrouter(value["data"], source)
    return Quotes(validate(PriceFile, read_yaml(text, source), source=source).models, {})


def _from_openrouter(rows: Any, source: str) -> Quotes:
    if not isinstance(rows, list) or not rows:
        raise DataError("expected a list of models", path=source, field="data")
    models: dict[str, ModelPrice] = {}
    left_out: dict[str, str] = {}
    for number, row in enumerate(rows):
        if not (isinstance(row, dict) and isinstance(row.get("id"), str) and isinstance(row.get("pricing"), dict)):
            raise DataError("expected an object with id and pricing", path=source, field=f"data[{number}]")
        try:
            models[row["id"]] = _price(row["pricing"])
        except ValueError as error:
            left_out[row["id"]] = str(error)
    return Quotes(models, left_out)


def _price(pricing: Mapping[str, Any]) -> ModelPrice:
    """Raises ``ValueError`` saying what a table has no word for."""
    usd = {name: _decimal(name, value) for name, value in pricing.items() if value not in (None, "")}
    for name in ("prompt", "completion"):
        if name not in usd:
            raise ValueError(f"no price for {name}")
    if min(usd.values()) < 0:
        raise ValueError("no fixed price")
    if usd.get("request"):
        raise ValueError("a fee for each request")
    if usd.get("discount"):
        raise ValueError("a discount")
    if usd.get("internal_reasoning", 0) not in (0, usd["completion"]):
        raise ValueError("reasoning has a price of its own")
    known = {ours: f"{usd[theirs] * MILLION:f}" for theirs, ours in _COUNTERS.items() if theirs in usd}
    try:
        return ModelPrice.model_validate(known)
    except ValidationError as error:
        raise ValueError(words_of(error.errors()[0])) from None


def _decimal(name: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        # Prices that depend on something else (tiers by length, by time of day) come as objects.
        raise ValueError(f"{name} is no plain price")
    try:
        found = Decimal(str(value))
    except ArithmeticError:
        raise ValueError(f"{name} is no number") from None
    if not found.is_finite():
        raise ValueError(f"{name} is no number")
    return found


def updated(own: Prices, quotes: Prices, in_effect: Prices) -> PriceUpdate:
    """The table ``own`` with every price of ``quotes`` in it, compared with the prices that are ``in_effect``."""
    changes = {name: (in_effect[name], price) for name, price in quotes.items() if name in in_effect}
    return PriceUpdate(
        models={**own, **quotes},
        changed={name: pair for name, pair in changes.items() if pair[0] != pair[1]},
        added={name: price for name, price in quotes.items() if name not in in_effect},
        same=sum(1 for before, after in changes.values() if before == after),
    )


def table_yaml(version: str, models: Prices, *, source: str) -> str:
    """A price file that reads back equal; models in the order of their names."""
    lines = [
        f"# USD per million tokens. Written by `firstchair prices update` from {' '.join(source.split())}.",
        f"version: {dumps(version)}",
        "models:" if models else "models: {}",
    ]
    lines += [f"  {_key(name)}: {{{_fields(models[name])}}}" for name in sorted(models)]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    """In quotes unless it can be nothing but a word: it may be a number, a date or a glob."""
    plain = re.fullmatch(r"[a-z][a-z0-9_./-]*", name) and name not in _YAML_WORDS
    return name if plain else str(yaml.safe_dump(name, default_style='"', width=10_000)).strip()


_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _fields(price: ModelPrice) -> str:
    return ", ".join(f"{field}: {usd_text(nano)}" for field, nano in price if nano is not None)


def usd_text(nano: int) -> str:
    """Dollars with the decimals that there are: ``0.195``, ``5``."""
    text = f"{Decimal(nano) / NANO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
