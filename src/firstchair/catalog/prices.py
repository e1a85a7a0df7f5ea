"""What a call costs: a dated table of prices, and exact integers.

A price is kept as nano-USD per million tokens, a cost as whole nano-USD (billionths). One call is rounded once, at
its end, half to even; with prices of up to three decimals nothing is left to round, and cost is additive to the last
digit. Sums over calls are sums of integers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from firstchair.catalog.token_counts import NANO, TokenCounts
from firstchair.core.config import Strict, validate
from firstchair.core.errors import ConfigError
from firstchair.core.globs import glob_match, is_glob, literal_length
from firstchair.core.yamltext import read_yaml

MILLION = 1_000_000
MAX_USD = 1_000_000
"""Per million tokens; more is a slip of the unit."""
_RELEASE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


def _nano_per_million(value: object) -> int:
    """USD per million tokens as nano-USD per million tokens, exactly; raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected USD per million tokens, such as 3 or 0.25")
    try:
        usd = Decimal(str(value))
    except ArithmeticError:
        raise ValueError("expected USD per million tokens, such as 3 or 0.25") from None
    if not usd.is_finite() or not 0 <= usd <= MAX_USD:
        raise ValueError(f"expected USD per million tokens, 0 to {MAX_USD:,}")
    nano = usd * NANO
    if nano != int(nano):
        raise ValueError("has more than nine decimals; cost is counted in billionths of a dollar")
    return int(nano)


Price = Annotated[int, BeforeValidator(_nano_per_million)]


class ModelPrice(Strict):
    """Nano-USD per million tokens of each counter; written in the table as USD per million."""

    input: Price
    output: Price
    """Reasoning too."""
    cache_read: Price | None = None
    cache_write_5m: Price | None = None
    cache_write_1h: Price | None = None
    """The three are priced as ``input`` where they are left out."""

    def cost_nano(self, counts: TokenCounts) -> int:
        """Nano-USD for ``counts``, rounded once, half to even."""
        return round_half_even(self.exact(counts), MILLION)

    def exact(self, counts: TokenCounts) -> int:
        """Nano-USD times a million, so that it is whole."""
        return (
            counts.input * self.input
            + counts.output * self.output
            + counts.cache_read * _or(self.cache_read, self.input)
            + counts.cache_write_5m * _or(self.cache_write_5m, self.input)
            + counts.cache_write_1h * _or(self.cache_write_1h, self.input)
        )


def _or(price: int | None, instead: int) -> int:
    return instead if price is None else price


def round_half_even(value: int, unit: int) -> int:
    """``value / unit`` as the nearest whole number; of two equally near ones the even one."""
    whole, rest = divmod(value, unit)
    return whole + (2 * rest > unit or (2 * rest == unit and whole % 2 == 1))


class PriceFile(Strict):
    """A price file as it stands on the disk."""

    version: str = Field(min_length=1, max_length=64)
    models: dict[str, ModelPrice]

    @model_validator(mode="after")
    def _named(self) -> Self:
        if "" in self.models:
            raise ValueError("models: found an empty name; expected a model or a glob")
        return self


def read_price_file(path: Path) -> PriceFile:
    """A table of one's own. Raises ``ConfigError`` naming the model and the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"prices: {path}: {error.strerror}; expected a YAML file, see prices.yaml") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"prices: {path}: not YAML: {error}") from None
    return validate(PriceFile, read_yaml(text, str(path)) or {}, source=str(path))


class PriceTable:
    """Prices of one version. Lookups are remembered."""

    def __init__(self, version: str, models: Mapping[str, ModelPrice]):
        self.version = version
        self.models = dict(models)
        self._globs = sorted(
            (name for name in models if is_glob(name)), key=lambda name: (-literal_length(name), name)
        )
        self._find = lru_cache(maxsize=1024)(self._found)

    @classmethod
    def load(cls, path: Path | None = None) -> PriceTable:
        """The table of ``path``, over the packaged one (its models win); the packaged one alone for ``None``.

        Raises ``ConfigError`` naming the model and the field.
        """
        text = resources.files("firstchair.catalog").joinpath("prices.yaml").read_text(encoding="utf-8")
        packaged = validate(PriceFile, read_yaml(text, "prices.yaml"), source="prices.yaml")
        if path is None:
            return cls(packaged.version, packaged.models)
        own = read_price_file(path)
        return cls(f"{own.version}+{packaged.version}", {**packaged.models, **own.models})

    def price(self, model: str, provider: str = "") -> ModelPrice | None:
        """The price of a model, ``None`` when the table has none.

        Looked for, in this order: ``provider/model``, ``model``, the same without a release date; each as a name,
        then as a glob (the one with the most characters that stand for themselves).
        """
        return self._find(model, provider)

    def cost_nano(self, model: str, counts: TokenCounts, provider: str = "") -> int | None:
        """Nano-USD of one call; ``None`` when no price is known."""
        price = self._find(model, provider)
        return None if price is None else price.cost_nano(counts)

    def counterfactual_nano(self, route: str | None, counts: TokenCounts) -> int | None:
        """What ``provider/model`` would have cost for the same counts; ``None`` when no price is known."""
        if route is None:
            return None
        provider, _, model = route.partition("/")
        return self.cost_nano(model, counts, provider)

    def _found(self, model: str, provider: str) -> ModelPrice | None:
        undated = _RELEASE.sub("", model)
        for name in dict.fromkeys((model, undated)):
            for full in (f"{provider}/{name}", name) if provider else (name,):
                if full in self.models:
                    return self.models[full]
                for pattern in self._globs:
                    if glob_match(pattern, full):
                        return self.models[pattern]
        return None
