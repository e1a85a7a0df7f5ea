import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.catalog.experts import Expert, ExpertCatalog
from firstchair.catalog.offers import (
    Offer,
    anonymised,
    brand_in,
    cost_tier,
    described,
    offer_of,
    price_line,
    sampled,
    size_hint,
)
from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.chat.messages import Tool
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import dumps

CATALOG = ExpertCatalog.load()
OFFER = offer_of(CATALOG, PriceTable.load())
seeds = st.integers(0, 2**32)


def expert(**fields):
    return Expert(**{"model": "acme/thing", "category": "local_open_source", "summary": "Good at x.", **fields})


# --- what is offered --------------------------------------------------------------------------------------------


def test_everything_is_offered_in_catalog_order_with_its_kind_category_and_schema():
    assert [one.label for one in OFFER.offered] == [
        *(one.name for one in CATALOG.experts),
        *(one.name for one in CATALOG.tools),
    ]
    first, search = OFFER.offered[0], OFFER.find("web_search")
    assert (first.kind, first.category, first.tool.extra) == (
        "model",
        "cloud_frontier",
        {"category": "cloud_frontier"},
    )
    assert first.tool.parameters["required"] == ["input"]
    assert (search.kind, search.category, search.price) == ("web_search", "basic_tool", None)
    assert OFFER.labels == {}
    assert OFFER.find("nothing") is None
    assert len(OFFER.tools) == 17
    assert len(OFFER.models) == 6


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("claude_opus_4_8", "Pricing: $5.00/1M input, $25.00/1M output."),
        ("qwen3_5_9b", "Pricing: $0.10/1M input, $0.15/1M output."),
        ("qwen3_6_27b_fp8", "Pricing: $0.20/1M input, $1.56/1M output."),
        ("qwen3_5_122b_a10b_fp8", "Pricing: $0.26/1M input, $2.08/1M output."),
        ("qwen3_5_397b_a17b_fp8", "Pricing: $0.39/1M input, $2.45/1M output."),
        ("gpt_5_5", "Pricing: unknown."),
    ],
)
def test_a_description_ends_with_its_price_line(name, line):
    assert OFFER.find(name).tool.description.endswith(" " + line)


def test_the_price_line_says_what_is_known():
    price = ModelPrice(input="0.004", output="1.005")
    assert price_line(price, 3.4) == "Pricing: $0.0040/1M input, $1.01/1M output; avg latency ~3s."
    assert (
        price_line(ModelPrice(input=0, output=0), 0.42)
        == "Pricing: $0.00/1M input, $0.00/1M output; avg latency ~0.4s."
    )
    assert price_line(None, None) == "Pricing: unknown."
    assert described(expert(hides_cost=True, latency_s=2), price) == "Good at x."


# --- sampling ---------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.2, 0.9]), st.integers(1, 20))
def test_a_sample_keeps_order_has_both_sorts_and_moves_prices_within_the_jitter(seed, jitter, least):
    sample = sampled(OFFER, random.Random(seed), jitter=jitter, least=least)
    places = [[one.name for one in OFFER.offered].index(one.name) for one in sample.offered]
    assert places == sorted(set(places))
    assert min(least, 17) <= len(places) <= 17
    assert sample.models
    assert any(one.kind != "model" for one in sample.offered)
    for one, before in zip(sample.offered, (OFFER.offered[place] for place in places), strict=True):
        assert replace(one, tool=before.tool, price=before.price) == before
        assert one.tool.extra == before.tool.extra
        if before.price is None:
            assert one == before
            continue
        for field, nano in before.price:
            now = getattr(one.price, field)
            assert (now is None) == (nano is None)
            if nano is not None:
                assert now % 100_000 == 0
                assert abs(now - nano) <= nano * jitter + 50_000
        assert one.tool.description == described(one.expert, one.price)
    assert sample == sampled(OFFER, random.Random(seed), jitter=jitter, least=least)


def test_input_and_output_move_by_one_factor_and_samples_differ():
    samples = [sampled(OFFER, random.Random(seed), jitter=0.5) for seed in range(40)]
    assert len({dumps([one.tool.description for one in sample.offered]) for sample in samples}) == 40
    factors = {
        (one.price.input / 5e9, one.price.output / 25e9)
        for sample in samples
        for one in sample.models
        if one.name == "claude_opus_4_8"
    }
    assert len(factors) > 5
    assert all(a == pytest.approx(b, abs=1e-4) and 0.5 <= a <= 1.5 for a, b in factors)
    assert min(len(sample.offered) for sample in samples) >= 4


class Fixed(random.Random):
    """Draws the factor that it is told to."""

    def uniform(self, low, high):
        return 1.0333


def test_jittered_prices_have_four_decimals_of_a_dollar():
    # .385 · 1.0333 = .3978205 and 2.45 · 1.0333 = 2.531585; 5 · 1.0333 = 5.1665 has no more than four.
    prices = {one.name: one.price for one in sampled(OFFER, Fixed(0), jitter=0.1, least=17).models}
    qwen, opus = prices["qwen3_5_397b_a17b_fp8"], prices["claude_opus_4_8"]
    assert (qwen.input, qwen.output, opus.input) == (397_800_000, 2_531_600_000, 5_166_500_000)


def test_all_letters_and_digits_come_up_in_labels():
    labels = "".join(one.label[6:] for seed in range(30) for one in anonymised(OFFER, random.Random(seed)).models)
    assert set(labels) == set("abcdefghijklmnopqrstuvwxyz0123456789")


def test_fields_that_hide_the_cost_survive_the_jitter():
    quiet = CATALOG.model_copy(update={"experts": (expert(hides_cost=True, size_class="medium"),)})
    sample = sampled(offer_of(quiet, PriceTable("v", {})), random.Random(0), jitter=0.3)
    assert sample.models[0].tool.description == "Good at x."
    assert sample.models[0].expert.size_class == "medium"


def test_what_cannot_be_sampled_is_said():
    with pytest.raises(ConfigError, match="jitter: found 1; expected"):
        sampled(OFFER, random.Random(0), jitter=1)
    with pytest.raises(ConfigError, match="6 models and 0 basic tools"):
        sampled(Offer(OFFER.models), random.Random(0))


# --- anonymising ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"params_b": 27}, "~27B params"),
        ({"model": "Qwen/Qwen3.5-9B"}, "~9B params"),
        ({"model": "x/thing-0.6b-chat"}, "~0.6B params"),
        ({"model": "Qwen/Qwen3.5-122B-A10B-FP8"}, "~122B params"),
        ({"model": "thing-9b", "params_b": 8.5}, "~8.5B params"),
        ({"model": "claude-opus-4-8"}, "size unspecified"),
        ({"model": "thing-a10b"}, "size unspecified"),
        ({"model": "thing-9bit"}, "size unspecified"),
    ],
)
def test_a_size_comes_from_the_catalog_else_from_the_name(fields, hint):
    assert size_hint(expert(**fields)) == hint


@pytest.mark.parametrize(
    ("size_class", "output", "tier"),
    [
        ("small", 100, "cheap"),
        ("medium", 0.1, "moderate"),
        ("frontier", 0.1, "expensive"),
        (None, 0, "cheap"),
        (None, 4.99, "cheap"),
        (None, 5, "moderate"),
        (None, 19.99, "moderate"),
        (None, 20, "expensive"),
        (None, None, "unknown"),
    ],
)
def test_a_cost_tier_goes_by_class_else_by_the_price_of_output(size_class, output, tier):
    price = None if output is None else ModelPrice(input=0, output=output)
    assert cost_tier(expert(size_class=size_class), price) == tier


@settings(max_examples=25, deadline=None)
@given(seeds, seeds)
def test_an_anonymised_offer_tells_no_brand_and_maps_its_labels_back(seed, other):
    sample = sampled(OFFER, random.Random(seed), jitter=0.2)
    hidden = anonymised(sample, random.Random(other))
    count = len(sample.models)
    top, below = hidden.offered[:count], hidden.offered[count:]
    assert below == tuple(one for one in sample.offered if one.kind != "model")
    assert {one.kind for one in top} == {"model"}
    assert hidden.labels == {one.label: one.name for one in top}
    assert sorted(hidden.labels.values()) == sorted(one.name for one in sample.models)
    for one in top:
        assert re.fullmatch("model_[a-z0-9]{4}", one.label)
        assert (one.category, one.tool.extra) == ("model", {"category": "model"})
        assert "Pricing" not in one.tool.description
        assert "latency" not in one.tool.description
        assert one.tool.description.startswith("Another model: ")
        assert any(f"cost {tier}" in one.tool.description for tier in ("cheap", "moderate", "expensive"))
        before = sample.find(one.name)
        assert (one.price, one.expert) == (before.price, before.expert)
    seen = dumps([[tool.name, tool.description, tool.parameters, tool.extra] for tool in hidden.tools]).lower()
    assert brand_in(seen) is None
    assert not any(one.name in seen or one.expert.model.lower() in seen for one in top)
    assert hidden == anonymised(sample, random.Random(other))


class Rigged(random.Random):
    """Draws the labels that it is told to."""

    def __init__(self, *labels):
        super().__init__(0)
        self.labels = list(labels)

    def choices(self, population, *args, **kwargs):
        return self.labels.pop(0)


def test_a_label_that_spells_a_brand_or_is_taken_is_drawn_again():
    two = Offer(OFFER.models[:2])
    hidden = anonymised(two, Rigged("qwen", "gpt5", "a1b2", "a1b2", "kimi", "zzzz"))
    assert [one.label for one in hidden.offered] == ["model_a1b2", "model_zzzz"]


def test_models_stand_in_another_order_with_another_rng():
    orders = {tuple(one.name for one in anonymised(OFFER, random.Random(seed)).offered[:6]) for seed in range(20)}
    assert len(orders) > 10


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (Tool(name="ask_claude"), "tool ask_claude: its spec says 'claude'"),
        (Tool(name="s", description="Uses GPT-4 inside."), "tool s: its spec says 'GPT'"),
        (Tool(name="s", parameters={"properties": {"m": {"enum": ["Sonnet"]}}}), "'Sonnet'"),
        (Tool(name="s", description="Like qwen3_5_9b."), "'qwen'"),
    ],
)
def test_a_tool_that_would_give_a_model_away_is_refused(tool, words):
    with pytest.raises(ConfigError, match=words):
        anonymised(offer_of(CATALOG.with_tools([tool]), PriceTable.load()), random.Random(0))


def test_brands_are_found_in_words_and_innocent_words_are_not():
    for text in ("ChatGPT", "qwen3_5_9b", "the opus", "Llama-3", "phi-4", "glm_5"):
        assert brand_in(text), text
    for text in ("philosophy", "a sonnetist", "opuscule", "model_ab12", "Searches the web and returns titles"):
        assert brand_in(text) is None, text
