"""Slots: the names that clients ask for, and who answers for each of them.

    model of a request → match_slot → SlotConfig → route_chain → (variant, route), tried in this order

All of it is pure. Where slots are kept, and their history, is in ``store.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.core.globs import glob_match, is_glob, literal_length
from firstchair.gateway.records import Variant

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Slots, providers, keys: they stand in headers, metrics and file names."""
MAX_FALLBACKS = 8
MAX_SHADOWS = 4


def check_name(text: str) -> str:
    """``text``, when it may name a slot, a provider or a key; else ``ValueError``."""
    if not NAME.fullmatch(text):
        raise ValueError("expected up to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit")
    return text


def check_model(text: str) -> str:
    """``text``, when a provider may know a model by it; else ``ValueError``."""
    if not text or len(text) > 256 or not text.isprintable() or text != text.strip():
        raise ValueError("expected a model name: 1 to 256 printable characters, no spaces around it")
    return text


Name = Annotated[str, AfterValidator(check_name)]
ModelName = Annotated[str, AfterValidator(check_model)]
Percent = Annotated[float, Field(ge=0, le=100)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Route(Strict):
    """One model at one provider."""

    provider: Name
    """A provider of the config file."""
    model: ModelName
    """The name that the provider knows."""

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def read_route(text: str) -> Route:
    """``provider/model`` (the model may hold slashes). Raises ``ConfigError``."""
    provider, slash, model = text.partition("/")
    try:
        if slash:
            return Route(provider=provider, model=model)
    except ValueError:
        pass
    raise ConfigError(f"route: found {text!r}; expected PROVIDER/MODEL, such as anthropic/claude-sonnet-4-6")


class ShadowRoute(Route):
    """A candidate that gets copies of answered calls; its own answers go nowhere but into ledger and traces."""

    percent: Percent = 100.0
    """Of the calls; 0 means never."""

    @property
    def route(self) -> Route:
        return Route(provider=self.provider, model=self.model)


class Bands(Strict):
    """What a canary must keep to; outside of it the gateway rolls it back by itself."""

    error_rate: float = Field(default=0.05, ge=0, le=1)
    """Largest share of failed calls."""
    malformed_rate: float = Field(default=0.05, ge=0, le=1)
    """Largest share of answers with a malformed tool call."""
    p95_ms: float | None = Field(default=None, gt=0)
    """Largest latency of the slowest twentieth; ``None``: any."""
    min_calls: int = Field(default=50, ge=1)
    """Of fewer calls, those that are missing count as good ones."""


class Canary(Strict):
    """A candidate that answers a share of the traffic."""

    route: Route
    percent: Percent
    """0 means never, not even as a fallback."""
    sticky_by: Literal["session", "key", "call"] = "session"
    """What keeps its assignment."""
    bands: Bands = Bands()


class Timeouts(Strict):
    """Seconds. ``total_s`` holds for all tries together."""

    connect_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    """Until the first content; then the next route is tried."""
    idle_s: Seconds = 60.0
    """Between two events of a stream."""
    answer_s: Seconds | None = None
    """One try of a whole answer (``stream`` off); then the next route is tried. ``None``: half of ``total_s`` while
    another route is left, which then has the other half, else all of it."""
    total_s: Seconds = 600.0

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for name in ("connect_s", "first_token_s", "answer_s"):
            value = getattr(self, name)
            if value is not None and value > self.total_s:
                raise ValueError(
                    f"{name} ({value:g}) must not be above total_s ({self.total_s:g}); "
                    "lower the first or raise the second"
                )
        return self

    def for_answer_s(self, *, is_last: bool) -> float:
        """Seconds for one try of a whole answer; ``is_last``: no route is left after this one."""
        if self.answer_s is not None:
            return self.answer_s
        return self.total_s if is_last else self.total_s / 2


class Retries(Strict):
    """Repeats on one route, before the next is tried. Never past ``total_s``."""

    attempts: int = Field(default=2, ge=1, le=10)
    """Tries on one route, the first one counted."""
    backoff_s: float = Field(default=0.25, ge=0, le=60)
    """Wait before the first repeat, doubled for each, with jitter; a provider's ``retry-after`` wins."""
    max_backoff_s: float = Field(default=8.0, ge=0, le=600)
    """A longer ``retry-after`` means: go to the next route now."""


class SlotConfig(Strict):
    """One slot."""

    slot: Name
    match: tuple[ModelName, ...] = Field(default=(), max_length=64)
    """Names (``*``, ``?`` and ``[…]`` as in file names) that clients ask for, beside the slot's own name."""
    primary: Route
    fallbacks: tuple[Route, ...] = Field(default=(), max_length=MAX_FALLBACKS)
    """In this order."""
    shadow: tuple[ShadowRoute, ...] = Field(default=(), max_length=MAX_SHADOWS)
    canary: Canary | None = None
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    on_disconnect: Literal["drain", "cancel"] = "cancel"
    """A client that goes away: read on until the provider has said the usage, or stop the provider."""
    drain_tokens: int = Field(default=4096, ge=0)
    """``drain`` stops after this many tokens."""
    require_valid_calls: bool = False
    """Tool calls are checked against their schemas: one repeat, then the next route."""
    counterfactual: str | None = None
    """``provider/model`` of the incumbent: what it would have cost stands beside each call's cost."""
    max_tokens_default: int = Field(default=4096, ge=1)
    """Sent where the provider requires a limit and the client gave none."""
    tool_images: Literal["inline", "user_turn", "refuse"] = "user_turn"
    """Images in tool results, for providers whose tool messages hold text only."""
    mid_system: Literal["user_turn", "refuse"] = "user_turn"
    """A system message inside the conversation, for providers that know one place for it."""

    @field_validator("match")
    @classmethod
    def _distinct(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(patterns)) != len(patterns):
            twice = next(pattern for pattern in patterns if patterns.count(pattern) > 1)
            raise ValueError(f"{twice!r} stands twice; keep one")
        return patterns

    @field_validator("counterfactual")
    @classmethod
    def _a_route(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                read_route(text)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _routes_differ(self) -> Self:
        tried = [self.primary, *self.fallbacks]
        for place, route in enumerate(self.fallbacks):
            if tried.index(route) <= place:
                raise ValueError(f"fallbacks[{place}] ({route}) is tried before; use `retries` to repeat a route")
        if self.canary and self.canary.route == self.primary:
            raise ValueError(f"canary.route ({self.canary.route}) is the primary; it would be compared with itself")
        shadows = [shadow.route for shadow in self.shadow]
        for route in shadows:
            if shadows.count(route) > 1:
                raise ValueError(f"shadow: {route} stands twice; it would be billed twice")
        return self


def match_slot(slots: Iterable[SlotConfig], model: str) -> SlotConfig | None:
    """The slot for ``model``, ``None`` when there is none.

    A slot of that name comes first, then a plain name in ``match``, then the glob with the most characters that
    stand for themselves; of equals the slot that is first in the alphabet.
    """
    found = [
        (rank, config.slot, config)
        for config in slots
        for pattern in (config.slot, *config.match)
        if (rank := _rank(config, pattern, model)) is not None
    ]
    return min(found, key=lambda match: match[:2])[2] if found else None


def _rank(config: SlotConfig, pattern: str, model: str) -> tuple[int, int] | None:
    """How near ``pattern`` is to ``model``, the least is the nearest; ``None`` when it is not meant."""
    if pattern == model:
        return (0 if pattern == config.slot else 1, 0)
    if is_glob(pattern) and glob_match(pattern, model):
        return (2, -literal_length(pattern))
    return None


def check_no_overlap(slots: Iterable[SlotConfig]) -> None:
    """Raises ``ConfigError`` when two slots claim the same name or glob."""
    owner: dict[str, str] = {}
    for config in sorted(slots, key=lambda one: one.slot):
        for pattern in {config.slot, *config.match}:
            first = owner.setdefault(pattern, config.slot)
            if first != config.slot:
                raise ConfigError(
                    f"slot {config.slot}: match: {pattern!r} is already matched by slot {first}; take it out of one"
                )


class Choice(NamedTuple):
    """A route to try, and as what its answer counts."""

    variant: Variant
    route: Route


def route_chain(slot: SlotConfig, *, canary: bool = False) -> tuple[Choice, ...]:
    """The routes to try, in order, each once; ``canary`` when this call was drawn for it.

    A canary at 0 percent is never tried, whatever the draw, and not as a fallback either. An answer of any route but
    the first counts as ``fallback``, so it is not credited to the variant that failed.
    """
    chosen = slot.canary if slot.canary and slot.canary.percent > 0 else None
    routes = [slot.primary, *slot.fallbacks]
    first: Variant = "primary"
    if slot.canary and not chosen:
        routes = [route for route in routes if route != slot.canary.route]
    elif chosen and canary:
        routes = [chosen.route, *(route for route in routes if route != chosen.route)]
        first = "canary"
    return tuple(Choice(first if place == 0 else "fallback", route) for place, route in enumerate(routes))


def promoted(slot: SlotConfig, route: Route) -> SlotConfig:
    """``slot`` with ``route`` as its primary and the old primary armed as the first fallback.

    The route leaves canary and shadow. A slot without a ``counterfactual`` gets the old primary, so that savings are
    counted from here on.
    """
    if route == slot.primary:
        raise ConfigError(f"slot {slot.slot}: {route} is already the primary; nothing to promote")
    others = [known for known in slot.fallbacks if known != route]
    data = slot.model_dump()
    data |= {
        "primary": route.model_dump(),
        "fallbacks": [known.model_dump() for known in (slot.primary, *others)][:MAX_FALLBACKS],
        "shadow": [shadow.model_dump() for shadow in slot.shadow if shadow.route != route],
        "counterfactual": slot.counterfactual or str(slot.primary),
    }
    if slot.canary and slot.canary.route == route:
        data["canary"] = None
    return SlotConfig.model_validate(data)
