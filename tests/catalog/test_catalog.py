import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from firstchair.catalog.catalog import Catalog, CatalogTool, Skill, SkillScript, catalog_yaml, load_catalog
from firstchair.catalog.infer import infer_catalog
from firstchair.catalog.lint import lint_catalog
from firstchair.catalog.policy import RoutingPolicy, RoutingRow, lint_policy
from firstchair.chat.messages import Tool
from firstchair.core.errors import ConfigError
from firstchair.testing.sessions import trip_tools

SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "items": {"type": "array", "items": {"properties": {"n": {}}}}},
    "required": ["query"],
}


def catalog(**fields: object) -> Catalog:
    tool = CatalogTool(name="search", description="Search.", parameters=SCHEMA)
    return Catalog(**{"name": "c", "verified": True, "tools": (tool,), **fields})


def test_a_catalog_survives_its_yaml(tmp_path):
    made = Catalog(
        name="office",
        verified=True,
        tools=(
            CatalogTool(
                name="search",
                description="Search: the web — “quickly”.",
                parameters={**SCHEMA, "default": {"on": "2024-05-20", "n": 1.0, "yes": None}},
                matchers={"query": "fuzzy>=0.8", "items[].n": "number"},
                kind="convention",
                read_only=True,
            ),
        ),
        skills=(Skill(name="pdf", description="Read PDFs.", scripts=(SkillScript(name="text"),), instructions="…"),),
        policy=RoutingPolicy(rows=(RoutingRow(id="r1", intent="look up", route="search", examples=("find x",)),)),
        extra_read_only=2,
        tool_names={"web.search": "search"},
    )
    path = tmp_path / "catalog.yaml"
    path.write_text(catalog_yaml(made), encoding="utf-8")
    assert load_catalog(path) == made
    assert made.matchers() == {"search": {"query": "fuzzy>=0.8", "items[].n": "number"}}
    assert made.tool("search") is made.tools[0]
    assert made.tool("nope") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=3))
def test_any_schema_survives_yaml_with_its_key_order(parameters):
    made = Catalog.from_tools("c", [Tool(name="t", parameters=parameters)])
    read = Catalog.model_validate(yaml.safe_load(catalog_yaml(made)))
    assert read == made
    assert str(read.tools[0].parameters) == str(parameters)


def test_tools_go_in_and_come_out_as_they_are():
    assert Catalog.from_tools("c", trip_tools()).tool_schemas() == trip_tools()
    assert not Catalog.from_tools("c", trip_tools()).verified


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: c\ntools: [{name: a}, {name: a}]", "stands twice"),
        ("name: c\ntool: []", "unknown field; did you mean tools"),
        ("name: c\ntools: [{name: a, parameters: {default: 2024-05-20}}]", "quote it"),
        ("name: c\ntools: [{name: a, parameters: {on: 1}}]", r"tools\.0\.parameters"),
        ("name: c\ntools: [{name: a, parameters: {x: [{on: 1}]}}]", r"x\[0\]: key True"),
        ("name: c\ntools: [{name: a, parameters: {x: .nan}}]", "not JSON"),
        ("name: c\ntools: [{name: a, kind: odd}]", r"tools\.0\.kind"),
        ("name: c\ntool_names: {x: y}", r"tool_names\.x: 'y' is no tool here"),
        ("name: c\ntools: [{name: a}, {name: b}]\ntool_names: {a: b}", r"tool_names\.a: is a tool itself"),
        ("name: c\nextra_read_only: -1", "extra_read_only"),
        ("name: ''", "name"),
        ("[1]", "expected a mapping"),
        ("name: [", "not YAML"),
    ],
)
def test_a_faulty_file_is_named_with_the_field(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_catalog(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"c\.yaml: no such catalog"):
        load_catalog(tmp_path / "c.yaml")


def test_inference_takes_the_newest_schema_and_says_so():
    old = (Tool(name="a", parameters={"v": 1}), Tool(name="b"))
    new = (Tool(name="c"), Tool(name="a", parameters={"v": 2}))
    found = infer_catalog("x", {"1": old, "2": new})
    assert [tool.name for tool in found.catalog.tools] == ["a", "b", "c"]
    assert found.catalog.tools[0].parameters == {"v": 2}
    assert found.notes == ("a was offered with 2 different schemas; the newest is written",)


def test_a_clean_catalog_has_no_findings():
    assert lint_catalog(catalog()) == ()
    assert [finding.place for finding in lint_catalog(catalog(extra_read_only=1))] == ["extra_read_only"]


@pytest.mark.parametrize(
    ("tool", "place", "words"),
    [
        ({"parameters": {"type": "objekt"}}, "tools[0].parameters", "not a JSON Schema"),
        ({"parameters": {"required": ["x"], "properties": {}}}, "tools[0].parameters.required", "'x'"),
        ({"matchers": {"nope": "exact"}}, "tools[0].matchers", "no field"),
        ({"matchers": {"items[].m": "exact"}}, "tools[0].matchers", "no field"),
        ({"matchers": {"query": "fuzy"}}, "tools[0].matchers", "unknown"),
        ({"matchers": {"a..b": "exact"}}, "tools[0].matchers", "path"),
        ({"description": None}, "tools[0].description", "no description"),
    ],
)
def test_a_questionable_tool_is_found(tool, place, words):
    made = CatalogTool(**{"name": "search", "description": "d", "parameters": SCHEMA, **tool})
    (finding,) = lint_catalog(catalog(tools=(made,)))
    assert finding.place == place
    assert words in finding.message


def test_matchers_may_reach_into_lists_open_objects_and_unions():
    schema = {
        "properties": {
            "list": {"items": {"properties": {"n": {}}}},
            "map": {"additionalProperties": {"properties": {"n": {}}}},
            "any": {"anyOf": [{"type": "string"}]},
            "open": {},
        }
    }
    paths = ("list[].n", "map.x.n", "map.*", "any.deep", "open.deep", "$")
    made = CatalogTool(name="t", description="d", parameters=schema, matchers=dict.fromkeys(paths, "exact"))
    assert lint_catalog(catalog(tools=(made,))) == ()


def row(row_id: str, route: str, **fields: object) -> RoutingRow:
    return RoutingRow(**{"id": row_id, "intent": "i", "route": route, "examples": (f"say {row_id}",), **fields})


def test_a_policy_that_contradicts_itself_or_the_catalog_is_found():
    policy = RoutingPolicy(
        rows=(
            row("a", "search", examples=("Find  me a logo",)),
            row("a", "reply"),
            row("b", "gone"),
            row("c", "skill", skill="gone"),
            row("d", "reply", examples=("find me a LOGO", "hello")),
            row("e", "skill", skill="pdf", examples=()),
        )
    )
    found = lint_policy(policy, tools=["search", "skill", "idle"], skills=["pdf", "idle"])
    assert [(finding.severity, finding.place) for finding in found] == [
        ("error", "policy.rows[0].id"),
        ("error", "policy.rows[1].id"),
        ("error", "policy.rows[2].route"),
        ("error", "policy.rows[3].skill"),
        ("warning", "policy.rows[5].examples"),
        ("error", "policy.rows[4].examples[0]"),
        ("warning", "policy.rows"),
        ("warning", "policy.rows"),
    ]
    assert policy.row("b").route == "gone"
    with pytest.raises(KeyError):
        policy.row("z")


def test_a_catalog_without_tools_or_a_readers_word_is_found():
    found = lint_catalog(Catalog(name="c", policy=RoutingPolicy(rows=(row("a", "gone"),))))
    assert [finding.place for finding in found] == ["tools", "policy.rows[0].route", "verified"]
