import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.catalog.price_update import fetch, read_quotes, table_yaml, updated
from firstchair.catalog.prices import ModelPrice, PriceFile, PriceTable
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, DataError, UpstreamError
from firstchair.core.yamltext import read_yaml
from firstchair.testing.fault_server import Answer, FaultServer

MODELS = {
    "data": [
        {
            "id": "qwen/qwen3-32b",
            "name": "x",
            "pricing": {"prompt": "0.0000001", "completion": "0.00000028", "request": "0"},
        },
        {
            "id": "anthropic/claude-opus-4.8",
            "pricing": {
                "prompt": "0.000005",
                "completion": "0.000025",
                "image": "0.0048",
                "web_search": "0.01",
                "internal_reasoning": "0.000025",
                "input_cache_read": "0.0000005",
                "input_cache_write": "0.00000625",
                "input_cache_write_1h": "0.00001",
            },
        },
        {"id": "free/model:free", "pricing": {"prompt": "0", "completion": "0"}},
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "per/request", "pricing": {"prompt": "0", "completion": "0", "request": "0.005"}},
        {"id": "dear/thoughts", "pricing": {"prompt": "1e-6", "completion": "2e-6", "internal_reasoning": "3e-6"}},
        {"id": "on/sale", "pricing": {"prompt": "1e-6", "completion": "2e-6", "discount": 0.5}},
        {"id": "half/told", "pricing": {"prompt": "1e-6"}},
        {"id": "tiered/one", "pricing": {"prompt": {"up_to": 1}, "completion": "2e-6"}},
        {"id": "too/fine", "pricing": {"prompt": "1e-16", "completion": "2e-6"}},
        {"id": "no/number", "pricing": {"prompt": "cheap", "completion": "2e-6"}},
    ]
}


def test_prices_a_token_become_prices_a_million_and_what_a_table_cannot_say_is_left_out():
    quotes = read_quotes(json.dumps(MODELS), "models.json")
    assert quotes.models == {
        "qwen/qwen3-32b": ModelPrice(input="0.1", output="0.28"),
        "anthropic/claude-opus-4.8": ModelPrice(
            input=5, output=25, cache_read="0.5", cache_write_5m="6.25", cache_write_1h=10
        ),
        "free/model:free": ModelPrice(input=0, output=0),
    }
    assert quotes.left_out == {
        "openrouter/auto": "no fixed price",
        "per/request": "a fee for each request",
        "dear/thoughts": "reasoning has a price of its own",
        "on/sale": "a discount",
        "half/told": "no price for completion",
        "tiered/one": "prompt is no plain price",
        "too/fine": "has more than nine decimals; cost is counted in billionths of a dollar",
        "no/number": "prompt is no number",
    }


def test_an_update_keeps_what_it_does_not_quote_and_tells_what_it_changes(tmp_path):
    own = {"mine": ModelPrice(input=1, output=1), "qwen/qwen3-32b": ModelPrice(input=9, output=9)}
    quotes = read_quotes(json.dumps(MODELS), "models.json").models | {"gpt-5": ModelPrice(input=1, output=1)}
    in_effect = {**PriceTable.load().models, **own, "free/model:free": ModelPrice(input=0, output=0)}
    done = updated(own, quotes, in_effect)
    assert set(done.models) == {"mine", *quotes}
    assert done.changed == {
        "qwen/qwen3-32b": (own["qwen/qwen3-32b"], quotes["qwen/qwen3-32b"]),
        "gpt-5": (in_effect["gpt-5"], quotes["gpt-5"]),
    }
    assert set(done.added) == {"anthropic/claude-opus-4.8"}
    assert done.same == 1
    path = tmp_path / "prices.yaml"
    path.write_text(table_yaml("2026-12-01", done.models, source="a\nb"))
    table = PriceTable.load(path)
    assert table.version == f"2026-12-01+{PriceTable.load().version}"
    assert table.price("mine") == own["mine"]
    assert table.price("free/model:free") == ModelPrice(input=0, output=0)


def test_a_table_of_ones_own_is_a_source_too():
    text = 'version: "x"\nmodels: {gpt-5: {input: 0.195, output: 2}}'
    assert read_quotes(text, "own.yaml").models == {"gpt-5": ModelPrice(input="0.195", output=2)}
    assert read_quotes('{"version": "x", "models": {}}', "own.json").models == {}


usd = st.decimals(0, 1000, places=9).map(str)
extra = st.none() | usd
price = st.builds(ModelPrice, input=usd, output=usd, cache_read=extra, cache_write_5m=extra, cache_write_1h=extra)


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), price, max_size=3))
def test_a_written_table_reads_back_equal(models):
    text = table_yaml("2026-11-30", models, source="here")
    again = validate(PriceFile, read_yaml(text, "t"), source="t")
    assert (again.version, again.models) == ("2026-11-30", models)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('{"data": []}', DataError, "m: data: expected a list of models"),
        ('{"data": [{"id": 1, "pricing": {}}]}', DataError, r"data\[0\]: expected an object"),
        ('{"data": ', DataError, "not strict JSON"),
        ("models: {m: {input: -1, output: 1}}", ConfigError, "version"),
        ("<html>", ConfigError, "m"),
    ],
)
def test_a_source_that_is_none_is_refused(text, error, words):
    with pytest.raises(error, match=words):
        read_quotes(text, "m")


def test_a_source_is_an_address_or_a_file(tmp_path):
    answers = {"/ok": Answer(MODELS), "/moved": Answer({}, 302, {"location": "/ok"}), "/gone": Answer({}, 404)}
    with FaultServer(lambda seen, number: answers[seen.path]) as server:
        assert json.loads(fetch(server.base_url + "/moved")) == MODELS
        with pytest.raises(UpstreamError, match="/gone: HTTP 404"):
            fetch(server.base_url + "/gone")
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        fetch(str(tmp_path / "none.json"))
