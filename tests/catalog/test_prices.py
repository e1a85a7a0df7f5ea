from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.catalog.prices import ModelPrice, PriceTable, round_half_even
from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import ConfigError

tokens = st.integers(0, 10**9)
counters = st.builds(
    TokenCounts, input=tokens, cache_read=tokens, cache_write_5m=tokens, cache_write_1h=tokens, output=tokens
)
COUNTERS = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")


def prices(decimals: int):
    usd = st.decimals(0, 1000, places=decimals).map(str)
    extra = st.none() | usd
    return st.builds(ModelPrice, input=usd, output=usd, cache_read=extra, cache_write_5m=extra, cache_write_1h=extra)


def test_known_answers_by_hand():
    table = PriceTable.load()
    counts = TokenCounts(input=1000, cache_read=200_000, cache_write_5m=3000, cache_write_1h=400, output=500)
    # sonnet: 1000*3 + 200000*.3 + 3000*3.75 + 400*6 + 500*15 = 3000 + 60000 + 11250 + 2400 + 7500 = 84150 millionths
    assert table.cost_nano("claude-sonnet-4-6", counts) == 84_150_000
    # gpt-5-nano, nothing said about writes: 1000*.05 + 200000*.005 + 3400*.05 + 500*.4 = 50 + 1000 + 170 + 200
    assert table.cost_nano("gpt-5-nano", counts) == 1_420_000
    assert table.cost_nano("claude-sonnet-4-6", TokenCounts()) == 0


def test_an_unknown_model_has_no_price_rather_than_a_wrong_one():
    table = PriceTable.load()
    for model in ("gpt-5.5", "gpt-5-ultra", "claude-sonnet-4-6-fast", "", "claude"):
        assert table.cost_nano(model, TokenCounts(input=1)) is None
    assert table.counterfactual_nano(None, TokenCounts(input=1)) is None
    assert table.counterfactual_nano("openai/gpt-5", TokenCounts(input=1)) == 1250


def test_a_release_date_is_ignored_unless_it_is_listed(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("version: mine\nmodels: {gpt-5-2025-08-07: {input: 9, output: 9}}")
    packaged, own = PriceTable.load(), PriceTable.load(path)
    one = TokenCounts(input=1)
    assert packaged.cost_nano("claude-haiku-4-5-20251001", one) == packaged.cost_nano("claude-haiku-4-5", one) == 1000
    assert own.cost_nano("gpt-5-2025-08-07", one) == 9000
    assert own.cost_nano("gpt-5-2026-01-01", one) == 1250


def test_own_prices_win_over_packaged_ones_and_name_both_versions(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        'version: "2027-01-01"\n'
        "models:\n"
        "  gpt-5: {input: 1, output: 2}\n"
        '  "local/*": {input: 0, output: 0}\n'
        '  "local/big-*": {input: 2, output: 2}\n'
        '  "gpt-[56]*": {input: 7, output: 7}\n'
    )
    table = PriceTable.load(path)
    assert table.version == f"2027-01-01+{PriceTable.load().version}"
    one = TokenCounts(input=1)
    assert table.cost_nano("gpt-5", one) == 1000
    assert table.cost_nano("gpt-5", one, "openai") == 1000
    assert table.cost_nano("gpt-5", one, "local") == 0
    assert table.cost_nano("qwen/x", one, "local") == 0
    assert table.cost_nano("big-7b", one, "local") == 2000
    assert table.cost_nano("gpt-6", one) == 7000
    assert table.cost_nano("gpt-4o", one) == 2500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "version: a\nmodels: {m: {input: -1, output: 1}}",
            r"models\.m\.input: expected USD .* 0 to",
        ),
        ("version: a\nmodels: {m: {input: .nan, output: 1}}", r"models\.m\.input"),
        ("version: a\nmodels: {m: {input: true, output: 1}}", r"models\.m\.input: expected USD"),
        ("version: a\nmodels: {m: {input: cheap, output: 1}}", r"models\.m\.input: expected USD"),
        ("version: a\nmodels: {m: {input: 0.0000000001, output: 1}}", "more than nine decimals"),
        ("version: a\nmodels: {m: {input: 1}}", r"models\.m\.output: Field required"),
        (
            "version: a\nmodels: {m: {input: 1, output: 1, cache: 1}}",
            r"cache: unknown field; did you mean cache_",
        ),
        ("models: {}", "version: Field required"),
        ("", "models: Field required"),
        ("version: a\nmodels: {m: {input: 1, output: 1}, m: {input: 2, output: 2}}", "stands twice"),
    ],
)
def test_a_wrong_table_is_refused_by_field(tmp_path, text, words):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        PriceTable.load(path)


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        PriceTable.load(tmp_path / "none.yaml")


@settings(max_examples=30)
@given(prices(9), counters)
def test_the_parts_make_up_the_whole(price, counts):
    parts = [TokenCounts(**{name: getattr(counts, name)}) for name in COUNTERS]
    assert sum(map(price.exact, parts)) == price.exact(counts)


@settings(max_examples=30)
@given(prices(3), counters, counters)
def test_with_three_decimals_nothing_is_rounded_so_costs_add_up(price, first, second):
    both = TokenCounts(**{name: getattr(first, name) + getattr(second, name) for name in COUNTERS})
    assert price.cost_nano(first) + price.cost_nano(second) == price.cost_nano(both)
    parts = [TokenCounts(**{name: getattr(first, name)}) for name in COUNTERS]
    assert sum(map(price.cost_nano, parts)) == price.cost_nano(first)


@settings(max_examples=30)
@given(prices(9), counters)
def test_cost_is_the_decimal_cost_rounded_once_half_to_even(price, counts):
    exact = Decimal(price.exact(counts)) / 1_000_000
    assert price.cost_nano(counts) == int(exact.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def test_halves_go_to_the_even_neighbour():
    assert [round_half_even(value, 2) for value in (1, 3, 5, 7)] == [0, 2, 2, 4]


def test_reasoning_is_part_of_output_and_not_billed_twice():
    table = PriceTable.load()
    with_reasoning = TokenCounts(output=10, reasoning=7)
    assert table.cost_nano("gpt-5", with_reasoning) == table.cost_nano("gpt-5", TokenCounts(output=10))
