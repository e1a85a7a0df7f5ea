from pathlib import Path

import pytest

from firstchair.catalog.backends import FREE, Backend, listed_price, reachable, resolve, unreachable
from firstchair.catalog.experts import PARAMETERS, BasicTool, Expert, ExpertCatalog, exclusions, tool_name
from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.chat.messages import Tool
from firstchair.core.errors import ConfigError

CATALOG = ExpertCatalog.load()
PRICES = PriceTable.load()
SMALL = CATALOG.expert("qwen3_5_9b")


def catalog(tmp_path, text):
    path = tmp_path / "experts.yaml"
    path.write_text(text)
    return ExpertCatalog.load(path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3.5-9B", "qwen3_5_9b"),
        ("gpt-5.5", "gpt_5_5"),
        ("claude-opus-4-8", "claude_opus_4_8"),
        ("Qwen/Qwen3.6-27B-FP8", "qwen3_6_27b_fp8"),
        ("Qwen/Qwen3.5-122B-A10B-FP8", "qwen3_5_122b_a10b_fp8"),
        ("openrouter/meta-llama/llama-3.3-70b-instruct:free", "llama_3_3_70b_instruct_free"),
    ],
)
def test_a_name_is_the_id_without_its_prefix_in_lower_case_with_underscores(model, name):
    assert tool_name(model) == name


def test_the_default_catalog_has_two_frontier_models_four_open_ones_and_eleven_tools():
    categories = [expert.category for expert in CATALOG.experts]
    assert categories == ["cloud_frontier"] * 2 + ["local_open_source"] * 4
    assert [expert.model for expert in CATALOG.experts] == [
        "gpt-5.5",
        "claude-opus-4-8",
        "Qwen/Qwen3.5-9B",
        "Qwen/Qwen3.6-27B-FP8",
        "Qwen/Qwen3.5-122B-A10B-FP8",
        "Qwen/Qwen3.5-397B-A17B-FP8",
    ]
    assert [tool.name for tool in CATALOG.tools] == [
        *("web_search", "code_interpreter", "calculator", "shell_exec", "file_read", "file_write"),
        *("http_request", "think", "apply_patch", "pdf_extract", "db_query"),
    ]
    assert all(tool.schema_of_kind["properties"] for tool in CATALOG.tools)


def test_every_kind_has_its_parameters_and_others_bring_their_own():
    fields = {kind: list(schema["properties"]) for kind, schema in PARAMETERS.items()}
    assert fields == {
        "model": ["input"],
        "web_search": ["query"],
        "local_search": ["query"],
        "code_interpreter": ["code"],
    }
    assert all(schema["required"] == list(schema["properties"]) for schema in PARAMETERS.values())
    for kind in ("web_search", "local_search", "code_interpreter"):
        assert BasicTool(name="t", kind=kind).schema_of_kind == PARAMETERS[kind]
    assert BasicTool(name="t").schema_of_kind == {}


USD = {
    "claude-opus-4-8": (5, 25),
    "claude-opus-4-7": (5, 25),
    "claude-sonnet-4-6": (3, 15),
    "claude-haiku-4-5": (1, 5),
    "qwen/qwen3.5-9b": (0.10, 0.15),
    "qwen/qwen3.6-27b": (0.195, 1.56),
    "qwen/qwen3.5-122b-a10b": (0.26, 2.08),
    "qwen/qwen3.5-397b-a17b": (0.385, 2.45),
    "meta-llama/llama-3.3-70b-instruct": (0.13, 0.39),
    "qwen/qwen3-32b": (0.10, 0.30),
    "qwen/qwen-2.5-coder-32b-instruct": (0.08, 0.18),
    "gpt-5": (1.25, 10),
}


@pytest.mark.parametrize("model", USD)
def test_the_price_table_has_every_price_of_the_reference(model):
    price = PRICES.price(model)
    assert price is not None
    assert (price.input, price.output) == tuple(round(usd * 10**9) for usd in USD[model])


# --- exclusion, tools that are mixed in ------------------------------------------------------------------------


def test_experts_are_excluded_by_a_part_of_their_name_or_model_from_the_file_and_the_environment(tmp_path):
    own = catalog(tmp_path, "exclude: [Claude]")
    assert "claude_opus_4_8" not in {expert.name for expert in own.experts}
    assert len(own.experts) == 5
    parts = exclusions({"FIRSTCHAIR_EXCLUDE_EXPERTS": " gpt-5, 397b ,"})
    assert parts == ("gpt-5", "397b")
    kept = ExpertCatalog.load(tmp_path / "experts.yaml", parts)
    assert [expert.name for expert in kept.experts] == ["qwen3_5_9b", "qwen3_6_27b_fp8", "qwen3_5_122b_a10b_fp8"]
    assert exclusions({}) == ()
    with pytest.raises(ConfigError, match="leaves no expert"):
        CATALOG.without(["gpt", "claude", "qwen"])


def test_tools_of_elsewhere_are_mixed_in_as_kind_other_and_keep_their_schema():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    better = {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}}
    mixed = CATALOG.with_tools(
        [
            Tool(name="weather", description="Of a city.", parameters=schema),
            Tool(name="web_search", parameters=better),
            Tool(name="ping"),
        ]
    )
    assert len(mixed.tools) == 13
    by_name = {tool.name: tool for tool in mixed.tools}
    assert (by_name["weather"].kind, by_name["weather"].schema_of_kind) == ("other", schema)
    assert (by_name["web_search"].kind, by_name["web_search"].schema_of_kind) == ("web_search", better)
    assert by_name["ping"].schema_of_kind == {}
    with pytest.raises(ConfigError, match="an expert has that name"):
        CATALOG.with_tools([Tool(name="gpt_5_5")])


def test_an_own_catalog_replaces_the_sections_that_it_has_and_reads_back_what_it_wrote(tmp_path):
    own = catalog(
        tmp_path,
        "experts: [{model: acme/Tiny-1B, category: local_open_source, summary: Short answers.}]\n"
        "endpoints: {tiny_1b: 'http://127.0.0.1:8000/v1'}\n"
        "providers: {openrouter: {concurrency: 4, requests_per_minute: 60}}\n",
    )
    assert [expert.name for expert in own.experts] == ["tiny_1b"]
    assert len(own.tools) == 11
    assert (own.providers["openrouter"].timeout_s, own.providers["openrouter"].retries) == (60.0, 2)
    again = tmp_path / "again.yaml"
    again.write_text(own.to_yaml())
    assert ExpertCatalog.load(again) == own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("endpoints: {qwen3_5_9: 'http://x/v1'}", r"endpoints\.qwen3_5_9: no such expert; did you mean qwen3_5_9b"),
        ("endpoints: {qwen3_5_9b: 'localhost'}", r"endpoints\.qwen3_5_9b: expected an address"),
        ("routes: {qwen3_5_9b: {provider: local, model: m}}", "provider local needs base_url"),
        ("routes: {other: {provider: openai, model: m}}", r"routes\.other: no such expert"),
        ("providers: {opnai: {concurrency: 2}}", "providers"),
        ("experts: []", "experts"),
        ("experts: [{model: '', category: cloud_frontier, summary: x}]", r"experts\.0\.model"),
        (f"experts: [{{model: {'m' * 65}, category: cloud_frontier, summary: x}}]", "name of 65 characters"),
        ("tools: [{name: gpt_5_5, parameters: {}}]", "gpt_5_5 stands twice"),
        ("experts: [{model: m, category: cheap, summary: x}]", "category"),
        ("expert: []", "unknown field; did you mean experts"),
    ],
)
def test_a_wrong_catalog_is_refused_by_field(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        catalog(tmp_path, text)


# --- backends ---------------------------------------------------------------------------------------------------

ALL_KEYS = {"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b", "GEMINI_API_KEY": "c", "OPENROUTER_API_KEY": "d"}


def test_an_override_comes_before_an_endpoint_before_the_native_provider_before_openrouter(tmp_path):
    keys = {"OPENAI_API_KEY": "a", "OPENROUTER_API_KEY": "d"}
    both = (
        "endpoints: {gpt_5_5: 'http://127.0.0.1:1/v1'}\n"
        "routes: {gpt_5_5: {provider: openai, model: gpt-5.5-pro, base_url: 'https://proxy/v1', key_env: PROXY_KEY}}"
    )
    route = catalog(tmp_path, both)
    assert resolve(route.expert("gpt_5_5"), route, {**keys, "PROXY_KEY": "k"}) == Backend(
        "openai", "https://proxy/v1", "gpt-5.5-pro", "PROXY_KEY"
    )
    local = catalog(tmp_path, both.partition("\n")[0])
    assert resolve(local.expert("gpt_5_5"), local, keys) == Backend("local", "http://127.0.0.1:1/v1", "gpt-5.5", "")
    frontier = CATALOG.expert("gpt_5_5")
    assert resolve(frontier, CATALOG, keys).provider == "openai"
    assert resolve(frontier, CATALOG, {"OPENROUTER_API_KEY": "d"}).model == "openai/gpt-5.5"
    assert resolve(SMALL, CATALOG, ALL_KEYS).provider == "openrouter"
    assert resolve(CATALOG.expert("claude_opus_4_8"), CATALOG, ALL_KEYS).dialect == "anthropic"


def test_the_name_stays_whatever_the_route_and_a_local_endpoint_costs_nothing(tmp_path):
    local = catalog(tmp_path, "endpoints: {qwen3_5_9b: 'http://127.0.0.1:1/v1'}")
    assert local.expert("qwen3_5_9b") == SMALL
    assert listed_price(SMALL, local, PRICES) == FREE == ModelPrice(input=0, output=0)
    assert listed_price(SMALL, CATALOG, PRICES) == PRICES.price("qwen/qwen3.5-9b")
    assert listed_price(CATALOG.expert("gpt_5_5"), CATALOG, PRICES) is None


@pytest.mark.parametrize(
    ("name", "environ", "words"),
    [
        ("gpt_5_5", {}, r"neither is set: OPENAI_API_KEY \(OpenAI\) or OPENROUTER_API_KEY \(OpenRouter\)"),
        ("gpt_5_5", {"OPENAI_API_KEY": ""}, "neither is set"),
        ("qwen3_5_9b", ALL_KEYS | {"OPENROUTER_API_KEY": ""}, r"^not set: OPENROUTER_API_KEY"),
    ],
)
def test_what_is_missing_is_named(name, environ, words):
    with pytest.raises(ConfigError, match=words):
        resolve(CATALOG.expert(name), CATALOG, environ)


def test_a_route_whose_key_is_missing_never_falls_back_to_another_provider(tmp_path):
    own = catalog(tmp_path, "routes: {gpt_5_5: {provider: gemini, model: g, key_env: MY_KEY}}")
    with pytest.raises(ConfigError, match=r"routes\.gpt_5_5 comes first, and .* MY_KEY is not set"):
        resolve(own.expert("gpt_5_5"), own, ALL_KEYS)
    nowhere = Expert(model="m", category="local_open_source", summary="x")
    with pytest.raises(ConfigError, match="no provider is named"):
        resolve(nowhere, CATALOG, ALL_KEYS)


def test_who_can_be_asked_is_told_apart_from_who_cannot():
    found, missing = reachable(CATALOG, {"ANTHROPIC_API_KEY": "b"})
    assert set(found) == {"claude_opus_4_8"}
    assert len(missing) == 5
    assert "OPENAI_API_KEY" in missing["gpt_5_5"]
    assert "expert m cannot be reached: x; set a key, give endpoints.m a server" in unreachable({"m": "x"})


def test_the_catalog_that_the_page_shows_loads(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "experts.md").read_text(encoding="utf-8")
    own = catalog(tmp_path, page.partition("```yaml\n")[2].partition("```")[0])
    assert own.expert("tiny_1b").openrouter == "acme/tiny-1b"
    assert own.providers["openrouter"].requests_per_minute == 300
