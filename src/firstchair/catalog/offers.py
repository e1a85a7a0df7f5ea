"""What one policy is offered: the catalog's models and tools as function specs, sampled, repriced and anonymised.

    catalog + prices ─► offer_of ─► sampled (a subset, prices jittered) ─► anonymised (labels for names) ─► policy
                                                                              │
                                        Offer.labels: label → name, for analysis and never for the policy

Every step is a pure function of its arguments and the ``random.Random`` that is passed in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any

from firstchair.catalog.backends import listed_price
from firstchair.catalog.experts import PARAMETERS, DispatchKind, Expert, ExpertCatalog, SizeClass
from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.catalog.token_counts import NANO
from firstchair.chat.messages import Tool
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import dumps

MIN_OFFERED = 4
"""Tools of a sampled offer, models included."""
PRICE_STEP_NANO = NANO // 10_000
"""Jittered prices are whole multiples: four decimals of a dollar per million tokens."""
ANONYMOUS = "model"
"""Category of an anonymised model."""

LABEL_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
LABEL_LENGTH = 4


@dataclass(frozen=True)
class OfferedTool:
    """One function as a policy sees it, and what it stands for."""

    tool: Tool
    """The spec, exactly as the policy sees it. Its ``extra`` holds the category as a tag."""
    name: str
    """Its name in the catalog."""
    kind: DispatchKind
    category: str
    price: ModelPrice | None = None
    """Of an expert, jittered where the offer is; ``None``: not known, or no expert."""
    expert: Expert | None = None
    """``None`` for basic tools."""

    @property
    def label(self) -> str:
        """The name that the policy calls it by."""
        return self.tool.name


@dataclass(frozen=True)
class Offer:
    """Everything that one policy may call, in the order in which it sees it."""

    offered: tuple[OfferedTool, ...]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The specs, to be kept on the rollout: real names would leak if they were made anew from the catalog."""
        return tuple(one.tool for one in self.offered)

    @property
    def labels(self) -> dict[str, str]:
        """Label → name in the catalog, where the two differ."""
        return {one.label: one.name for one in self.offered if one.label != one.name}

    @property
    def models(self) -> tuple[OfferedTool, ...]:
        """The experts among them."""
        return tuple(one for one in self.offered if one.kind == "model")

    def find(self, label: str) -> OfferedTool | None:
        """What a call of ``label`` means; ``None`` when nothing of that name is offered."""
        return next((one for one in self.offered if one.label == label), None)


def offer_of(catalog: ExpertCatalog, prices: PriceTable) -> Offer:
    """The whole catalog under its real names, experts first."""
    offered = [
        _expert_as_offered(expert, expert.category, listed_price(expert, catalog, prices))
        for expert in catalog.experts
    ]
    for tool in catalog.tools:
        spec = _spec(tool.name, tool.summary, tool.schema_of_kind, tool.category)
        offered.append(OfferedTool(spec, tool.name, tool.kind, tool.category))
    return Offer(tuple(offered))


def _expert_as_offered(expert: Expert, category: str, price: ModelPrice | None) -> OfferedTool:
    spec = _spec(expert.name, described(expert, price), PARAMETERS["model"], category)
    return OfferedTool(spec, expert.name, "model", category, price, expert)


def _spec(name: str, description: str, parameters: dict[str, Any], category: str) -> Tool:
    return Tool(name=name, description=description or None, parameters=parameters, extra={"category": category})


# --- descriptions -----------------------------------------------------------------------------------------------


def described(expert: Expert, price: ModelPrice | None) -> str:
    """The description of an expert: what it is good at, then its price line unless it hides that."""
    return expert.summary if expert.hides_cost else f"{expert.summary} {price_line(price, expert.latency_s)}"


def price_line(price: ModelPrice | None, latency_s: float | None) -> str:
    """``Pricing: $x.xx/1M input, $y.yy/1M output; avg latency ~Ns.``; what is not known is not said."""
    cost = "unknown" if price is None else f"{_usd(price.input)}/1M input, {_usd(price.output)}/1M output"
    return f"Pricing: {cost}{'' if latency_s is None else f'; avg latency ~{_seconds(latency_s)}'}."


def _usd(nano: int) -> str:
    """Two decimals, half up; four below a cent, so that cheap is not free."""
    usd = Decimal(nano) / NANO
    step = Decimal("0.0001") if 0 < usd < Decimal("0.01") else Decimal("0.01")
    return f"${usd.quantize(step, ROUND_HALF_UP):f}"


def _seconds(latency_s: float) -> str:
    return f"{latency_s:.0f}s" if latency_s >= 1 else f"{latency_s:.1f}s"


# --- sampling ---------------------------------------------------------------------------------------------------


def sampled(offer: Offer, rng: random.Random, *, jitter: float = 0.0, least: int = MIN_OFFERED) -> Offer:
    """A random subset in the order of ``offer``, with prices moved.

    Its size is uniform from ``least`` to all; it has at least one model and one basic tool. An expert's prices are
    multiplied by one factor, uniform in [1 − ``jitter``, 1 + ``jitter``], and rounded to four decimals of a dollar.
    Every other field stays. Raises ``ConfigError`` for an offer without a model or without a basic tool, and for a
    ``jitter`` outside [0, 1).
    """
    if not 0 <= jitter < 1:
        raise ConfigError(f"jitter: found {jitter:g}; expected at least 0 and less than 1")
    models = [place for place, one in enumerate(offer.offered) if one.kind == "model"]
    basic = [place for place, one in enumerate(offer.offered) if one.kind != "model"]
    if not models or not basic:
        raise ConfigError(
            f"an offer of {len(models)} models and {len(basic)} basic tools cannot be sampled; expected at least one "
            "of each"
        )
    total = len(offer.offered)
    size = rng.randint(min(max(least, 2), total), total)
    chosen = {rng.choice(models), rng.choice(basic)}
    others = [place for place in range(total) if place not in chosen]
    chosen.update(rng.sample(others, size - len(chosen)))
    kept = (offer.offered[place] for place in sorted(chosen))
    return Offer(tuple(_repriced(one, rng.uniform(1 - jitter, 1 + jitter)) for one in kept))


def _repriced(one: OfferedTool, factor: float) -> OfferedTool:
    if one.expert is None or one.price is None:
        return one
    price = one.price.model_copy(
        update={
            field: round(nano * factor / PRICE_STEP_NANO) * PRICE_STEP_NANO
            for field, nano in one.price
            if nano is not None
        }
    )
    return _expert_as_offered(one.expert, one.category, price)


# --- anonymising ------------------------------------------------------------------------------------------------

BRANDS = (
    *("anthropic", "chatgpt", "claude", "cohere", "deepmind", "deepseek", "gemini", "gemma", "gpt", "grok"),
    *("hunyuan", "kimi", "llama", "mistral", "mixtral", "moonshot", "nemotron", "openai", "openrouter", "qwen"),
    *("qwq", "vicuna"),
)
"""What gives a model away wherever it stands in a word."""
BRAND_WORDS = ("ernie", "glm", "haiku", "opus", "phi", "sonnet", "xai")
"""What does so as a word of its own, and is a part of innocent ones."""
_BRAND = re.compile(
    "|".join(BRANDS) + "|" + "|".join(f"(?<![a-z]){word}(?![a-z])" for word in BRAND_WORDS), re.IGNORECASE
)

TIERS: dict[SizeClass, str] = {"small": "cheap", "medium": "moderate", "frontier": "expensive"}
"""Cost tier by class."""
CHEAP_BELOW_USD, MODERATE_BELOW_USD = 5, 20
"""Per million output tokens; by these where an expert has no class."""
_PARAMS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")


@lru_cache(maxsize=1024)
def brand_in(text: str) -> str | None:
    """The first brand of a model or of its makers in ``text``; ``None`` when there is none."""
    found = _BRAND.search(text)
    return found.group() if found else None


def size_hint(expert: Expert) -> str:
    """``~9B params`` from the catalog, else from a name such as ``…-9b``, else ``size unspecified``."""
    named = _PARAMS.search(expert.model.lower())
    billions = expert.params_b if expert.params_b is not None else float(named.group(1)) if named else None
    return "size unspecified" if billions is None else f"~{billions:g}B params"


def cost_tier(expert: Expert, price: ModelPrice | None) -> str:
    """``cheap``, ``moderate`` or ``expensive``, by class, else by the price of output; ``unknown`` without either."""
    if expert.size_class is not None:
        return TIERS[expert.size_class]
    if price is None:
        return "unknown"
    if price.output < CHEAP_BELOW_USD * NANO:
        return "cheap"
    return "moderate" if price.output < MODERATE_BELOW_USD * NANO else "expensive"


def anonymised(offer: Offer, rng: random.Random) -> Offer:
    """``offer`` without a name that gives a model away: what is learnt is then about class, size and cost alone.

    Models become ``model_`` and four random letters or digits, stand on top in random order, and say nothing but
    their class, size and cost tier; basic tools follow under their own names. Pass a fresh ``rng`` for every rollout.
    Raises ``ConfigError`` naming a basic tool whose spec holds a brand: its name is what it is called by.
    """
    models, basic = list(offer.models), [one for one in offer.offered if one.kind != "model"]
    _refuse_brands(basic, [one.name for one in models])
    rng.shuffle(models)
    taken = {one.label for one in basic}
    top = []
    for one in models:
        label = _label(rng, taken)
        taken.add(label)
        assert one.expert is not None
        spec = _spec(label, _faceless(one.expert, one.price), PARAMETERS["model"], ANONYMOUS)
        top.append(replace(one, tool=spec, category=ANONYMOUS))
    return Offer((*top, *basic))


def _faceless(expert: Expert, price: ModelPrice | None) -> str:
    standing = f"{expert.size_class} class" if expert.size_class else "class unspecified"
    return f"Another model: {standing}, {size_hint(expert)}, cost {cost_tier(expert, price)}."


def _label(rng: random.Random, taken: Iterable[str]) -> str:
    while True:
        label = f"model_{''.join(rng.choices(LABEL_LETTERS, k=LABEL_LENGTH))}"
        # Four letters are enough for a name: model_qwen, model_gpt5.
        if label not in taken and brand_in(label) is None:
            return label


def _refuse_brands(basic: Sequence[OfferedTool], names: Sequence[str]) -> None:
    for one in basic:
        text = dumps([one.tool.name, one.tool.description, one.tool.parameters, one.tool.extra])
        found = brand_in(text) or next((name for name in names if re.search(rf"\b{name}\b", text.lower())), None)
        if found:
            raise ConfigError(
                f"tool {one.name}: its spec says {found!r}, which would tell an anonymised policy about a model; "
                "reword it or leave the tool out"
            )
